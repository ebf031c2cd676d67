"""The printed text, tested with mlir-aie's own tools: verifier, assignment, router, words.

    MLIR_AIE_BIN=DIR python -m pytest tests/mlir/test_real_tools.py

docs/npu.md ("Checked against real sources") says which version it was run with.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_tools
from combinations import DESIGNS, SEQUENCES, SMALLEST, shapes
from real_tools import ASSIGN, BIN, MISSING, ROUTE, aie_opt

from ort_aie_ep.aie_kernels.build import aiecc_command
from ort_aie_ep.aie_kernels.mlir import report
from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.aie_kernels.mlir.sequences import Run, ShapeError
from ort_aie_ep.aie_kernels.mlir.toolchain import Toolchain
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.simulator.txn import AddressPatch, BlockWrite, MaskWrite, decode
from ort_aie_ep.npu.terms.arguments import together
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design

# The firmware translates the addresses of so many arguments. To those of the others mlir-aie adds
# where the NPU sees memory; here a run never has them.
TRANSLATED, DDR = 5, 0x80000000

pytestmark = pytest.mark.skipif(BIN is None, reason=MISSING)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_is_verified_assigned_and_routed(design: Design, tmp_path: Path) -> None:
    assigned = aie_opt(ASSIGN, print_module(design))
    # The tools have moved nothing, and `report` reads aiecc's printed form correctly.
    plan = configure(design)
    assert report.differences(report.expected(plan), report.parse(assigned)) == []
    routed = aie_opt(ROUTE, assigned)
    for column in {port.tile.column for port in plan.shim_ports.values()}:
        # The tokens' route, which the driver adds to each column that a stream can wait for.
        assert re.search(rf"aie.shim_mux\(%shim_noc_tile_{column}_0\)", routed)
    # The outputs of each switch, as the tool finds them: those streams and no others.
    found = report.parse(aie_opt(real_tools.FIND_FLOWS, routed))
    assert found.streams == report.expected(plan).streams
    assert len(real_tools.configuration(routed, tmp_path)) >= 2


@pytest.mark.parametrize("design", SMALLEST)
def test_the_code_of_cores_becomes_llvms(design: Design) -> None:
    assigned = aie_opt(ASSIGN, print_module(design))
    kinds: dict[Any, Any] = {}
    for worker in design.workers.values():  # one of each body
        kinds.setdefault(worker.body.__qualname__, worker)
    for worker in kinds.values():
        code = aie_opt(real_tools.core_code(worker.tile.column, worker.tile.row), assigned)
        called = set(re.findall(r"llvm\.call @([\w.]+)", code))
        core = "llvm." + design.device.architecture
        locks = {f"{core}.acquire", f"{core}.release"}
        assert called == {kernel.name for kernel in worker.kernels} | locks


@pytest.mark.parametrize("design", SMALLEST)
def test_aiecc_takes_what_is_printed_with_the_options_of_a_build(
    design: Design, tmp_path: Path
) -> None:
    mlir = tmp_path / "aie.mlir"
    mlir.write_text(print_module(design))
    tools = Toolchain(Path("peano"), Path("aiecc"), Path("include"), "")
    real_tools.aiecc(aiecc_command(tools, tmp_path, mlir, instructions=True), tmp_path)
    report.compare(configure(design), (tmp_path / "input_with_addresses.mlir").read_text())
    # Nothing but a header: the overlay's own sequence is empty.
    assert (tmp_path / "insts.bin").stat().st_size == 16


@pytest.mark.parametrize(("design", "name"), SEQUENCES)
def test_instruction_words_are_those_of_the_runtime(design: Design, name: str) -> None:
    sequence = design.sequences[name]
    for shape in shapes(sequence):
        try:
            text = print_module(design, Run(sequence, shape))
        except ShapeError:  # more than the compiler accepts at once
            continue
        routed = aie_opt(ROUTE, aie_opt(ASSIGN, text))
        theirs = np.frombuffer(real_tools.instruction_words(routed), dtype=np.uint32)
        # All in one buffer, as a run has five at most, and some sequences have more arguments.
        places = together(sequence.argument_bytes(shape))
        ours = Session(design).build(name, shape, places)
        assert len(ours) == 1
        whole = [places[a.name] for a in sequence.arguments]
        assert _meaning(theirs, whole) == _meaning(ours[0], [(0, 0)])
        return
    pytest.fail("every small shape is more than one stream of the compiler holds")


def _meaning(words: np.ndarray, places: list[tuple[int, int]]) -> list[Any]:
    """The operations of a stream without the two things that may differ.

    `places` are the buffer of each argument and the bytes before it, which patches then name.
    mlir-aie writes the offset into a descriptor's address word and this library writes 0; both
    patch it with the same offset. mlir-aie names a channel's controller before each token, this
    library only before the first.
    """
    operations: list[Any] = []
    named: Counter[int] = Counter()
    for operation in decode(words).operations:
        match operation:
            case BlockWrite(words=content):
                assert len(content) == 8
                operations.append((operation.address, content[0], *content[2:]))
            case MaskWrite():
                named[operation.address] += 1
                if named[operation.address] == 1:
                    operations.append((operation.address, operation.value, operation.mask))
            case AddressPatch():
                buffer, before = places[operation.argument]
                plus = operation.plus - (DDR if operation.argument >= TRANSLATED else 0)
                operations.append((operation.address, buffer, before + plus))
            case _:
                operations.append(_without_place(operation))
    return operations


def _without_place(operation: Any) -> tuple[Any, ...]:
    fields = [v for k, v in asdict(operation).items() if k not in ("index", "offset")]
    return (type(operation).__name__, *fields)
