"""Counts the vector operations that each kernel asks for, with its unrolled loops unrolled.

    python lab/kernel_operations.py

Prints the table of `ort_aie_ep/npu/checks/core_programs.py`. A kernel is compiled for this machine
with every function of the AIE API left as a call (g++ -fno-inline), and with the loops that ask for
it unrolled; so each call in the assembly is one that the chip's compiler has to place as well. A
call counts for as many registers of 512 bits as its widest vector has, a product for as many
instructions as the core needs for its lanes, and moves between registers, which the compiler mostly
removes, for nothing. Where both architectures have the kernels, the larger count is taken.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "aie_kernels"
ARCHITECTURES = {20: 16, 21: 64}  # the lanes of a product of bfloat16
HINTS = """#pragma once
#include <aie_api/aie.hpp>
#define LOOP_TRIPS(trips, low, high)
#define LOOP_UNROLL(count) _Pragma("GCC unroll " #count)
#define LOOP_UNROLL_FULL _Pragma("GCC unroll 256")
#define LOOP_NO_UNROLL _Pragma("GCC unroll 1")
"""
# -fno-ipa-*: no function of the API becomes another one.
FLAGS = (
    "-std=c++20", "-O2", "-fno-inline", "-fno-ipa-cp", "-fno-ipa-icf", "-fno-ipa-sra",
    "-fno-ipa-ra", "-fno-tree-loop-distribute-patterns", "-w", "-S", "-o", "-",
)  # fmt: skip

#: Sources of kernels that AIE2 has too.
LINEAR = {"copy.cc", "dequant.cc", "fused_dqp.cc", "fused_dqp_two_bits.cc", "gemm.cc"}

API = ("_ZN3aie", "_ZNK3aie")
BITS = {
    "float": 32, "bfloat16": 16, "int": 32, "unsigned int": 32, "short": 16, "unsigned short": 16,
    "unsigned char": 8, "signed char": 8, "uint4": 4, "int4": 4, "accfloat": 32, "acc32": 32,
}  # fmt: skip
MOVES = {
    "vector", "accum", "mmul", "extract", "insert", "concat", "cast_to", "grow", "get", "set",
    "operator", "set_rounding", "to_accum", "from_uint32", "size",
}  # fmt: skip
PRODUCTS = {"mul", "negmul", "mac", "msc", "mul_square", "mac_square"}
#: Instructions of a call that is several whatever its width: products of bfp16 with their
#: conversions, of fp32 from bfloat16 limbs, and what goes through all lanes.
TILE, LIMBS = 8, 9
LONG = {"reduce_add": 8, "reduce_max": 8, "reduce_min": 8, "inv": 10, "invsqrt": 10}


def calls(assembly: str) -> dict[str, list[str]]:
    """By function, those that it calls, or whose address it takes."""
    found: dict[str, list[str]] = defaultdict(list)
    function = ""
    for line in assembly.splitlines():
        label = re.match(r"([\w$]+):", line)
        call = re.match(r"\s+(?:call|jmp)\s+([\w$]+)(?:@PLT)?$", line)
        address = re.match(r"\s+(?:lea[ql]\s+|mov[lq]\s+\$)(_Z[\w$]+)[(,]", line)
        if label:
            function = label[1]
        elif call or (address and not address[1].startswith(API)):
            found[function].append((call or address)[1])  # type: ignore[index]
    return found


def all_calls(of: dict[str, list[str]], function: str, inside: tuple[str, ...] = ()) -> list[str]:
    """Calls of the API by `function` and, as if they were inlined, by the functions it calls."""
    found = []
    for name in of.get(function, ()):
        if name.startswith(API):
            found.append(name)
        elif name not in inside:
            found += all_calls(of, name, (*inside, function))
    return found


def operations(name: str, lanes: int) -> int:
    """What a call of this demangled function counts for."""
    vectors = re.findall(r"(?:vector|accum)<([\w ]+?)(?: const)?, (\d+)u>", name)
    registers = max((-(-BITS[t] * int(n) // 512) for t, n in vectors if t in BITS), default=1)
    plain = name
    while re.search(r"<[^<>]*>", plain):
        plain = re.sub(r"<[^<>]*>", "", plain)
    plain = plain.split("(")[0].split(" ")[-1]
    last = plain.split("::")[-1]
    if "detail" in plain or last in MOVES or last.startswith(("~", "vector_elem", "operator")):
        return 0
    if last in PRODUCTS:
        if "mmul" in plain:
            return TILE
        if "vector<float" in name:
            return LIMBS * registers
        return max(-(-int(n) // lanes) for _, n in vectors) if vectors else 1
    return LONG.get(last, registers)


def count(source: Path, folder: Path, architecture: int) -> dict[str, int]:
    """By kernel of `source`, its operations; none if it does not compile."""
    include = [f"-I{SOURCES / 'host'}", f"-I{folder}", f"-D__AIE_ARCH__={architecture}"]
    done = subprocess.run(["g++", *FLAGS, *include, source], capture_output=True, text=True)
    if done.returncode:
        return {}
    of = calls(done.stdout)
    names = sorted({name for called in of.values() for name in called if name.startswith(API)})
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    cost = {
        name: operations(text, ARCHITECTURES[architecture])
        for name, text in zip(names, plain.stdout.splitlines(), strict=True)
    }
    kernels = re.findall(r"^\s*\.globl\s+([a-z]\w*)$", done.stdout, re.MULTILINE)
    return {kernel: sum(cost[n] for n in all_calls(of, kernel)) for kernel in kernels}


def main() -> None:
    """Print the table, source by source."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "aie_kernels"
        shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("host", "*.py"))
        for hints in folder.rglob("loop_hints.h"):
            hints.write_text(HINTS)
        for source in sorted(folder.rglob("*.cc"), key=lambda path: path.name):
            most: dict[str, int] = {}
            for architecture in ARCHITECTURES if source.name in LINEAR else (21,):
                for kernel, size in count(source, folder, architecture).items():
                    most[kernel] = max(size, most.get(kernel, 0))
            row = ", ".join(f'"{kernel}": {size}' for kernel, size in sorted(most.items()))
            print(f"    {row},  # {source.name}")


if __name__ == "__main__":
    main()
