"""A clang++ with libFuzzer: the machine's own, else Debian's or Ubuntu's in a private folder.

`python clang.py` prints where it is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/xrt/real_xrt"))
from private_root import APT_PACKAGES, NoPackages, apt, cache_folder  # noqa: E402

# The environment variable that names another compiler to use.
VARIABLE = "ORT_AIE_FUZZ_CXX"
# Older ones do not know all the CPU features that the kernels need.
VERSIONS = (21, 20, 19, 18, 17, 16)
PROBE = """\
#include <cstddef>
#include <cstdint>
#include <span>
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("f16c") != 0 && size > 99) return 0;
#endif
  return std::span(data, size).size() > 1 << 30 ? 0 : 0;
}
"""


class NoClang(Exception):
    """This machine has no clang++ with libFuzzer, and none can be installed."""


def find_clang(cache: Path) -> Path:
    """A clang++ whose programs with libFuzzer and sanitizers work on this machine.

    Downloads one into `cache` where the machine has none.

    Raises:
        NoClang: apt cannot get it, or what it gets does not work: the reason.
    """
    if given := os.environ.get(VARIABLE):
        if problem := _problem(Path(given)):
            raise NoClang(f"{VARIABLE}={given}: {problem}")
        return Path(given)
    names = ("clang++", *(f"clang++-{version}" for version in VERSIONS))
    for name in names:
        found = shutil.which(name)
        if found is not None and not _problem(Path(found)):
            return Path(found)
    private = _private(cache)
    if problem := _problem(private):
        raise NoClang(f"{private}: {problem}")
    return private


def _problem(compiler: Path) -> str:
    """The reason why this compiler cannot be used; empty if it can."""
    with tempfile.TemporaryDirectory() as scratch:
        source, program = Path(scratch) / "probe.cc", Path(scratch) / "probe"
        source.write_text(PROBE)
        flags = ["-std=c++20", "-fsanitize=fuzzer,address,undefined"]
        for command in (
            [compiler, *flags, source, "-o", program],
            [program, "-runs=1"],
        ):
            try:
                done = subprocess.run(
                    command, cwd=scratch, capture_output=True, text=True, check=False
                )
            except OSError as error:
                return str(error)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                return next((x for x in lines if "error" in x), (lines or ["it fails"])[-1])
    return ""


def _private(cache: Path) -> Path:
    """The compiler in a separate folder, which is created the first time and kept."""
    kept = sorted(cache.glob("clang-root-*/clang++"))
    if kept:
        return kept[-1]
    names = "|".join(f"clang-{version}" for version in VERSIONS)
    runtimes = "|".join(f"libclang-rt-{version}-dev" for version in VERSIONS)
    # By name, because apt leaves out what the machine has, which this clang++ does not look for.
    headers = "|".join(f"libclang-common-{version}-dev" for version in VERSIONS)
    try:
        packages = apt(APT_PACKAGES, "--own-release", cache, names, runtimes, headers)
    except NoPackages as error:
        raise NoClang(
            f"this machine has none that works, and apt cannot get one (clang-{VERSIONS[0]} and "
            f"older were tried): {error}. Install one, or name it in {VARIABLE}"
        ) from None
    clang = next(package.name for package in packages if re.match(r"clang-\d", package.name))
    root = cache / f"clang-root-{clang}"
    with tempfile.TemporaryDirectory(dir=cache, prefix=".merging-") as beside:
        new = Path(beside) / "root"
        for package in packages:
            shutil.copytree(package / "usr", new / "usr", symlinks=True, dirs_exist_ok=True)
        binary = next(iter(new.glob("usr/lib/llvm-*/bin/clang++")), None)
        libraries = [str(root / path.relative_to(new)) for path in new.glob("usr/lib/*-linux-gnu")]
        if binary is None:
            raise NoClang(f"apt's {clang} has no clang++")
        launcher = new / "clang++"
        launcher.write_text(
            "#!/bin/sh\n"
            f"export LD_LIBRARY_PATH={':'.join(libraries)}\n"
            f'exec {root / binary.relative_to(new)} "$@"\n'
        )
        launcher.chmod(0o755)
        try:
            new.rename(root)
        except OSError:
            # If two processes get here, the second finds the first one's folder, which has the same
            # content.
            if not root.is_dir():
                raise
    for package in packages:
        shutil.rmtree(package)
    return root / "clang++"


if __name__ == "__main__":
    try:
        print(find_clang(cache_folder()))
    except NoClang as error:
        sys.exit(f"error: {error}")
