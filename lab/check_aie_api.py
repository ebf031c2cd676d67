"""Checks the NPU kernels against the real headers of the AIE API, with an ordinary clang.

    make real-headers AIE_API=DIR
    python lab/check_aie_api.py DIR --clang clang++-19

DIR is a checkout of AMD's public headers (github.com/Xilinx/aie_api).

Nothing is compiled: clang runs with `-fsyntax-only`, for each architecture that a kernel is written
for (AIE2 has no bfp16). Only the compilers for AIE have intrinsics and native vectors, so the
script declares them in a form that fits everything (check_aie_api.h, and names taken from the
headers). These messages of clang count: errors in the kernels' own lines, failed static assertions,
and templates without a definition. They show overloads that the API lacks, operands of other types,
constraints and shapes. Other messages about the inside of the API come from those declarations and
do not count.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ort_aie_ep.aie_kernels.build import designs_on
from ort_aie_ep.npu.terms.device import device

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parent / "aie_kernels"

# __AIE_ARCH__, and __AIE_MODEL_VERSION__ as llvm-aie of 2026 defines it.
ARCHITECTURES = {"aie2": (20, 10500), "aie2p": (21, 11500)}

# Names that check_aie_api.h defines.
DECLARED = {
    "aie", "std", "abs", "event0", "event1", "bfloat16", "cbfloat16", "cfloat", "cint16", "cint32",
    "int4_t", "uint4_t", "addr_t", "bfp16ebs8", "bfp16ebs16", "caccfloat", "accfloat", "acc32",
    "acc64", "cacc64",
}  # fmt: skip
NATIVE = re.compile(r"\bv\d+(?:u?int\d+|c?bfloat16|c?float|c?acc\w+|cint\d+|bfp\w+)\b")
GLOBAL = re.compile(r"(?<![\w>)\]:])::([a-z_]\w*)\b(?!\s*::)")
MODES = re.compile(r"\b(?:T\d+_\d+x\d+\w*|D?INTLV_\w+|OP_TERM_\w+)\b")
# Macros put names together, so only the compiler's messages show some of them.
MISSING = re.compile(
    r"no member named '(\w+)' in the global namespace|use of undeclared identifier '((?:undef|rnd|"
    r"sat|get|set|extract|insert|shuffle|broadcast)_\w+)'"
)
# Errors inside the API that the kernel causes: shapes and lane counts that do not exist.
OF_ITS_USER = re.compile(r"static assertion|instantiation of undefined template 'aie::")
# Peano's own attributes of loops (loop_hints.h).
PEANO = re.compile(r"invalid option '(?:min|max)_iteration_count'")


class Reader:
    """clang on sources that include the API of a checkout."""

    def __init__(self, api: Path, clang: str, architecture: str, folder: Path) -> None:
        self._clang = clang
        self._arch, self._model = ARCHITECTURES[architecture]
        self._include = api / "include"
        self._names = folder / f"{architecture}.h"
        self._declare(folder / f"{architecture}_api.cc")

    def _declare(self, source: Path) -> None:
        text = ""
        for header in (self._include / "aie_api").rglob("*.hpp"):
            if "aie1" not in header.parts and "adf" not in header.parts:
                code = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
                text += re.sub(r"//[^\n]*", "", code)
        types = set(NATIVE.findall(text))
        functions = set(GLOBAL.findall(text)) - types - DECLARED
        constants = set(MODES.findall(text))
        source.write_text("#include <aie_api/aie.hpp>\n")
        while True:
            lines = [f"using {name} = aie_check::native<struct {name}_tag>;" for name in types]
            lines += [
                f"template <typename... A> aie_check::any {name}(A&&...);" for name in functions
            ]
            lines.append(f"enum aie_check_modes : unsigned {{ {', '.join(constants)} }};")
            self._names.write_text("\n".join(sorted(lines)) + "\n")
            errors = self.errors(source)
            missing = {a or b for line in errors for a, b in MISSING.findall(line)}
            missing -= functions | constants
            if not missing:
                return
            modes = {name for name in missing if name.startswith(("rnd_", "sat_")) or name[0] < "_"}
            constants |= modes
            functions |= missing - modes

    def errors(self, source: Path) -> list[str]:
        """Every error, as one line."""
        return [line for line in self._say(source) if ": error: " in line]

    def own_errors(self, source: Path) -> list[str]:
        """The errors that are about the lines of kernels."""
        return [
            line
            for line in self.errors(source)
            if (line.startswith(str(KERNELS)) or OF_ITS_USER.search(line))
            and not PEANO.search(line)
        ]

    def _say(self, source: Path) -> list[str]:
        """clang's messages about a source, line by line."""
        done = subprocess.run(
            [
                self._clang, "-x", "c++", "-fsyntax-only", "-std=c++20", "-w", "-ferror-limit=0",
                "-fno-caret-diagnostics", "-ftemplate-backtrace-limit=0",
                "-Wno-missing-template-arg-list-after-template-kw",
                f"-D__AIE_ARCH__={self._arch}", f"-D__AIE_MODEL_VERSION__={self._model}",
                "-D__AIECC__", "-D__AIENGINE__", "-D__AIE_API_AIE_ADF_HPP__", f"-I{self._include}",
                f"-I{KERNELS}", "-include", HERE / "check_aie_api.h", "-include", self._names,
                source,
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise SystemExit(f"{self._clang} failed on {source}:\n{done.stderr}")
        return done.stderr.splitlines()


def written_for() -> dict[Path, set[str]]:
    """By source, the architectures of its kernels. Designs on npu2 have all of them."""
    found: dict[Path, set[str]] = {}
    for design in designs_on(device("npu2"), ()).values():
        for kernel in (kernel for worker in design.workers.values() for kernel in worker.kernels):
            found.setdefault(KERNELS / kernel.source, set()).update(kernel.architectures)
    return found


def check_kernels(readers: dict[str, Reader], workers: ThreadPoolExecutor) -> int:
    """Prints the errors of the kernels and returns their number."""
    architectures = written_for()
    sources = sorted(KERNELS.glob("[!h]*/*.cc"))
    jobs = [(name, s) for s in sources for name in readers if name in architectures[s]]
    found = workers.map(lambda job: readers[job[0]].own_errors(job[1]), jobs)
    wrong = 0
    for (name, source), errors in zip(jobs, found, strict=True):
        print(f"{name:6} {source.name:16} {len(errors) or 'no'} errors", *errors, sep="\n  ")
        wrong += len(errors)
    return wrong


def main() -> None:
    """Ends with 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("api", type=Path, help="a checkout of github.com/Xilinx/aie_api")
    parser.add_argument("--clang", default="clang++", help="19 or later (default: %(default)s)")
    arguments = parser.parse_args()
    if not (arguments.api / "include" / "aie_api" / "aie.hpp").is_file():
        raise SystemExit(f"{arguments.api} has no include/aie_api/aie.hpp")
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(2) as workers:
        folder = Path(temporary)
        readers = {
            name: Reader(arguments.api.resolve(), arguments.clang, name, folder)
            for name in ARCHITECTURES
        }
        wrong = check_kernels(readers, workers)
    if wrong:
        raise SystemExit(f"{wrong} errors")


if __name__ == "__main__":
    main()
