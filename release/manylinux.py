"""A CMake toolchain with which this machine's GCC builds for an old glibc and an old libstdc++.

The compiler stays the machine's own, so the code is what a plain build has. What it compiles and
links against is old:

* glibc: the headers and the stub libraries of PyPI's `ziglang`, which has them for each version.
* libstdc++: the machine's headers, and a stub library that has the symbols of the old version
  alone. The headers want newer ones too: those come from the machine's libstdc++.a, as in GCC's
  toolsets for old distributions. libstdc++.so.6 stays the C++ runtime that all libraries share.

    python manylinux.py FOLDER [--compiler g++-14]

fills FOLDER and prints the toolchain file in it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# What the policy allows, which is that of ONNX Runtime's own wheels.
PLATFORM = "manylinux_2_27_x86_64"
GLIBC = "2.27"
LIBSTDCXX = {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}

# Where ziglang keeps the headers of glibc and Linux, in the order of its own search.
ZIG_HEADERS = ("x86-linux-gnu", "generic-glibc", "x86-linux-any", "any-linux-any")

# Headers that the old glibc lacks: libstdc++ looks for them, and uses what they declare.
NEWER_HEADERS = ("sys/single_threaded.h",)  # 2.32

# What GCC found in the glibc that it was built with, and the old one lacks.
NEWER_FEATURES = """\
#ifdef __cplusplus
#include <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT    /* 2.30 */
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK   /* 2.30 */
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK  /* 2.30 */
#endif
"""

# What members of libstdc++.a refer to and the old libraries do not export. The second symbol stands
# for eh_terminate.o: std::terminate must stay the shared one, whose handler a program may set.
NEWER_SYMBOLS = """\
.hidden __libc_single_threaded  /* glibc 2.32; 0: there may be threads */
.globl __libc_single_threaded
.type __libc_single_threaded, @object
.size __libc_single_threaded, 1
.section .rodata
__libc_single_threaded: .byte 0

.hidden _ZN10__cxxabiv111__terminateEPFvvE  /* __cxxabiv1::__terminate(handler) */
.globl _ZN10__cxxabiv111__terminateEPFvvE
.type _ZN10__cxxabiv111__terminateEPFvvE, @function
.text
_ZN10__cxxabiv111__terminateEPFvvE: jmp _ZSt9terminatev@PLT
.section .note.GNU-stack, "", @progbits
"""

# The type of a symbol, as readelf writes it: the section for its stub, and the assembler's word.
SECTIONS = {
    "FUNC": (".text", "function"),
    "IFUNC": (".text", "function"),
    "OBJECT": (".data", "object"),
    "TLS": ('.tbss, "awT", @nobits', "tls_object"),
}

# Every command finds the programs of this Python's environment first, and takes no folder that it
# is started in, as build/ is one, for a module.
ENVIRONMENT = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "PYTHONSAFEPATH": "1",
}


class CannotBuild(Exception):
    """What this machine lacks, or a step that failed and what it said."""


@dataclass(frozen=True)
class Symbol:
    """What a library exports: the type as readelf writes it, and the version, (3, 4, 21)."""

    name: str
    type: str
    family: str
    version: tuple[int, ...]

    @property
    def node(self) -> str:
        """The version as the library has it, GLIBCXX_3.4.21."""
        return f"{self.family}_{'.'.join(map(str, self.version))}"


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Runs `command`; returns what it printed.

    Raises:
        CannotBuild: it failed; with all that it said.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotBuild(f"{' '.join(words)} failed:\n{done.stdout}")
    return done.stdout


def make_toolchain(folder: Path, compiler: str) -> Path:
    """Fills `folder`, which is emptied before; returns the toolchain file in it.

    Raises:
        CannotBuild: the compiler is not GCC for x86-64 or a tool is missing.
    """
    path = shutil.which(compiler)
    if path is None:
        raise CannotBuild(f"there is no {compiler} on PATH: install GCC's C++ compiler")
    if not run(path, "-dumpmachine").startswith("x86_64-"):
        raise CannotBuild(
            f"{compiler} compiles for {run(path, '-dumpmachine').strip()}, not x86_64"
        )
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib").mkdir(parents=True)
    _write_glibc(folder, path)
    _write_libstdcxx(folder, path)
    _write_python_headers(folder / "include/python")
    return _write_toolchain(folder, path)


def _write_glibc(folder: Path, compiler: str) -> None:
    try:
        import ziglang
    except ImportError:
        raise CannotBuild("the Python package ziglang is missing: pip install ziglang") from None
    zig = Path(ziglang.__file__).parent
    # zig makes the stubs when it links the first library. Its own runtimes take it half a minute.
    empty = folder / "empty.c"
    empty.write_text("")
    cache = folder / "zig"
    run(
        *(zig / "zig", "build-lib", "-dynamic", "-target", f"x86_64-linux-gnu.{GLIBC}", empty),
        *("-fno-compiler-rt", "-fno-ubsan-rt", f"-femit-bin={folder / 'empty.so'}"),
        *("-lc", "-lm", "-lpthread", "-ldl", "-lrt"),
        environment={"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)},
    )
    lib = folder / "lib"
    names = {
        "libc.so.6": "libc.so.6",
        "libc_nonshared.a": "libc_nonshared.a",
        "libld.so.2": "ld-linux-x86-64.so.2",
        **{
            f"lib{name}": f"lib{name.split('.')[0]}.so"
            for name in ("m.so.6", "pthread.so.0", "dl.so.2", "rt.so.1")
        },
    }
    for made, name in names.items():
        found = list(cache.glob(f"o/*/{made}"))
        if len(found) != 1:
            raise CannotBuild(
                f"zig made {len(found)} files {made} in {cache}/o where 1 was expected: this "
                "ziglang is not of the version that pyproject.toml names"
            )
        shutil.copyfile(found[0], lib / name)
    source = folder / "newer.s"
    source.write_text(NEWER_SYMBOLS)
    run(compiler, "-c", source, "-o", folder / "newer.o")
    run("ar", "rcs", lib / "libnewer.a", folder / "newer.o")
    (lib / "libc.so").write_text(
        f"GROUP({lib}/libc.so.6 {lib}/libc_nonshared.a {lib}/libnewer.a "
        f"AS_NEEDED({lib}/ld-linux-x86-64.so.2))\n"
    )
    include = folder / "include"
    for name in ZIG_HEADERS:
        shutil.copytree(zig / "lib/libc/include" / name, include / name)
    for name in NEWER_HEADERS:
        (include / "generic-glibc" / name).unlink()
    (include / "newer_features.h").write_text(NEWER_FEATURES)


def _write_libstdcxx(folder: Path, compiler: str) -> None:
    shared, archive = (
        Path(run(compiler, f"-print-file-name=libstdc++.{suffix}").strip())
        for suffix in ("so", "a")
    )
    if not shared.is_absolute() or not archive.is_absolute():
        raise CannotBuild(f"{compiler} has no libstdc++.so and libstdc++.a: it must be GCC")
    symbols = old_symbols(shared).values()
    nodes: dict[str, list[str]] = {}
    stubs: dict[str, list[str]] = {}
    for symbol in symbols:
        nodes.setdefault(symbol.node, []).append(f"{symbol.name};")
        section, word = SECTIONS[symbol.type]
        stubs.setdefault(section, []).append(
            f".globl {symbol.name}\n.type {symbol.name}, @{word}\n{symbol.name}:\n"
        )
    source, versions = folder / "libstdcxx.s", folder / "libstdcxx.map"
    source.write_text("".join(f".section {s}\n{''.join(of)}.zero 8\n" for s, of in stubs.items()))
    versions.write_text("".join(f"{node} {{ {' '.join(of)} }};\n" for node, of in nodes.items()))
    stub = folder / "lib/libstdc++.so.6"
    run(
        *(compiler, "-shared", "-nostdlib", "-Wl,-soname,libstdc++.so.6"),
        *(f"-Wl,--version-script={versions}", source, "-o", stub),
    )
    newer = folder / "lib/libstdc++.a"
    shutil.copyfile(archive, newer)
    run("ar", "d", newer, "eh_terminate.o")
    (folder / "lib/libstdc++.so").write_text(f"INPUT({stub} {newer})\n")


def old_symbols(library: Path) -> dict[str, Symbol]:
    """What `library` exported in the old version, by name.

    A symbol of several versions had the newest of those that are old enough.
    """
    chosen: dict[str, Symbol] = {}
    for line in run("readelf", "--wide", "--dyn-syms", library).splitlines():
        # number, value, size, type, binding, visibility, section, name@version
        fields = line.split()
        match = re.fullmatch(r"(.+?)@@?([A-Z]+)_([\d.]+)", fields[7]) if len(fields) > 7 else None
        if not match or fields[6] in ("UND", "ABS") or match[2] not in LIBSTDCXX:
            continue
        symbol = Symbol(match[1], fields[3], match[2], tuple(map(int, match[3].split("."))))
        before = chosen.get(symbol.name)
        if symbol.version <= LIBSTDCXX[symbol.family] and (
            before is None or before.version < symbol.version
        ):
            chosen[symbol.name] = symbol
    return chosen


def _write_python_headers(folder: Path) -> None:
    # Debian's pyconfig.h includes another one relative to /usr/include.
    for source in Path("/usr/include").glob("*/python3*/pyconfig.h"):
        link = folder / source.parent.relative_to("/usr/include")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source.parent)


def _write_toolchain(folder: Path, compiler: str) -> Path:
    include = folder / "include"
    headers = [*_own_headers(compiler), *(include / name for name in ZIG_HEADERS)]
    flags = [
        "-nostdinc",
        *(f"-isystem {header}" for header in headers),
        f"-idirafter {include}/python",
        f"-D__GLIBC_MINOR__={GLIBC.split('.')[1]}",
        f"-include {include}/newer_features.h",
    ]
    # Of the archive's members, what is not used is left out.
    link = f"-L{folder}/lib -Wl,--exclude-libs,libstdc++.a -Wl,--gc-sections"
    lines = [
        f'set(CMAKE_CXX_COMPILER "{compiler}")',
        f'set(CMAKE_CXX_FLAGS_INIT "{" ".join(flags)}")',
        *(f'set(CMAKE_{k}_LINKER_FLAGS_INIT "{link}")' for k in ("EXE", "MODULE", "SHARED")),
        "# The machine's glibc has its headers there.",
        "list(APPEND CMAKE_IGNORE_PATH /usr/include /usr/local/include)",
    ]
    path = folder / "toolchain.cmake"
    path.write_text("\n".join(lines) + "\n")
    return path


def _own_headers(compiler: str) -> list[Path]:
    """Where the compiler has the headers of C++ and of its intrinsics."""
    said = run(compiler, "-xc++", "-E", "-v", os.devnull)
    listed = said.split("#include <...> search starts here:\n")[1].split("End of search list")[0]
    folders = [Path(line.strip()).resolve() for line in listed.splitlines()]
    return [f for f in folders if "c++" in f.parts or "gcc" in f.parts]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the toolchain goes")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"), help="a GCC")
    arguments = parser.parse_args()
    try:
        print(make_toolchain(arguments.folder.absolute(), arguments.compiler))
    except CannotBuild as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
