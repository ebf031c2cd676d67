"""mlir-aie's own aie-opt and aie-translate, if $MLIR_AIE_BIN names their folder.

The passes are those that its driver aiecc runs, in that order (tools/aiecc/IRTransforms.h at
7e00b579).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

BIN = os.environ.get("MLIR_AIE_BIN")
MISSING = "MLIR_AIE_BIN does not name a folder with mlir-aie's aie-opt and aie-translate"

# From the printed module to the one that aiecc writes as input_with_addresses.mlir.
ASSIGN = (
    "builtin.module(aie.device(aie-place-tiles),lower-affine,aie-canonicalize-device,"
    "aie-lower-scratchpad-parameters,"
    "aie.device(aie-objectFifo-stateful-transform{packet-sw-objFifos=false},"
    "aie-objectFifo-unroll{default-dynamic=true},aie-assign-lock-ids,aie-assign-bd-ids,"
    "aie-lower-cascade-flows,aie-lower-broadcast-packet,aie-lower-multicast,"
    "aie-assign-tile-controller-ids),"
    "aie-generate-column-control-overlay{route-shim-to-tile-ctrl=false},"
    "aie.device(aie-assign-buffer-addresses{alloc-scheme=basic-sequential},"
    "aie-assign-core-link-files,aie-vector-transfer-lowering),aie-scf-to-control-flow)"
)
ROUTE = "builtin.module(aie.device(aie-create-pathfinder-flows))"
FIND_FLOWS = "builtin.module(aie.device(aie-find-flows))"
INSTRUCTIONS = (
    "builtin.module(aie-materialize-runtime-sequences,aie.device(aie-materialize-bd-chains,"
    "aie-substitute-shim-dma-allocations,aie-unroll-runtime-sequence-loops,canonicalize,"
    "aie-decompose-large-dma-bd,aie-lower-dynamic-bd-pool,canonicalize,"
    "aie-assign-runtime-sequence-bd-ids,aie-dma-tasks-to-npu,aie-lower-dma-channel-reset,"
    "aie-dma-to-npu,aie-lower-set-lock,aie-lower-core-reset))"
)


def core_code(column: int, row: int) -> str:
    """The passes that turn one core's code into LLVM's dialect."""
    return (
        "builtin.module(aie.device(aie-localize-locks,aie-normalize-address-spaces),"
        f"aie-standard-lowering{{tilecol={column} tilerow={row}}},aiex-standard-lowering,"
        "canonicalize,cse,expand-strided-metadata,lower-affine,arith-expand,"
        "finalize-memref-to-llvm,convert-func-to-llvm{use-bare-ptr-memref-call-conv},"
        "convert-to-llvm{dynamic},convert-ub-to-llvm,canonicalize,cse)"
    )


def aie_opt(passes: str, text: str) -> str:
    """The module after the passes; an AssertionError with the tool's message if it refuses it."""
    return _run("aie-opt", [f"--pass-pipeline={passes}"], text)


def instruction_words(text: str) -> bytes:
    """The words of the runtime sequence of a routed module."""
    return binary(aie_opt(INSTRUCTIONS, text), sequence="sequence")


def binary(text: str, *, sequence: str) -> bytes:
    """The words of a sequence whose operations have been turned into writes."""
    options = ["--aie-npu-to-binary", f"--aie-sequence-name={sequence}"]
    return _output("aie-translate", options, text)


def configuration(text: str, folder: Path) -> list[Path]:
    """The configuration data of a routed module, as files of `folder`."""
    _run("aie-translate", ["--aie-generate-cdo", f"--work-dir-path={folder}"], text)
    return sorted(folder.glob("*.bin"))


def aiecc(command: list[str], folder: Path) -> None:
    """Runs aiecc, without the steps that need Peano and XRT."""
    assert BIN is not None
    left_out = ("--peano", "--get-xclbin", "--xclbin-name")
    options = [o for o in command[1:] if not o.startswith(left_out)]
    done = subprocess.run(
        [str(Path(BIN) / "aiecc"), *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"aiecc {' '.join(options)}\n{done.stderr}"


def _run(tool: str, options: list[str], text: str) -> str:
    return _output(tool, options, text).decode()


def _output(tool: str, options: list[str], text: str) -> bytes:
    assert BIN is not None
    command = [str(Path(BIN) / tool), *options, "-"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    assert done.returncode == 0, f"{tool} {' '.join(options)}\n{done.stderr.decode()}"
    return done.stdout
