"""Problems of the row operators of a prompt: `problems` for the overlay `gemm` on AIE2P."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from ort_aie_ep.npu.validate import references as ref
from ort_aie_ep.npu.validate.problem import Context, Output, Problem, doubles, generator, nan
from ort_aie_ep.npu.validate.references import BF16, bf16
from ort_aie_ep.npu.vocabulary.device import Device


def _gate(context: Context, p: dict[str, int]) -> Problem:
    rows, n = max(p["M"], 64), p["N"]
    gate, up = (
        bf16(generator({**p, "operand": operand}).standard_normal((rows, stride)))
        for operand, stride in enumerate((p["gate_stride"], p["up_stride"]))
    )

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        expected = ref.glu(gate[: p["M"], :n], up[: p["M"], :n], p["kind"])
        return [Output("y", doubles(after["y"][: p["M"]]), expected)]

    def last_row_ends(x: ref.Doubles, stride: int) -> NDArray[Any]:
        return x.astype(BF16).reshape(-1)[: (rows - 1) * stride + n]

    buffers = {
        "gate": last_row_ends(gate, p["gate_stride"]), "up": last_row_ends(up, p["up_stride"]),
        "y": nan(rows, n),
    }  # fmt: skip
    return Problem("gate", p, buffers, judge)


def _gate_of(*shapes: tuple[int, int, int, int, int]) -> Callable[[Device], Any]:
    names = ("M", "N", "kind", "gate_stride", "up_stride")
    return lambda device: iter([dict(zip(names, shape, strict=True)) for shape in shapes])


#: By sequence: ((small shapes, typical shapes), the problem of one).
KNOWN: dict[str, tuple[tuple[Callable[..., Any], Callable[..., Any]], Any]] = {
    "gate": (
        (_gate_of((1, 256, 0, 256, 256), (130, 700, 1, 1400, 702)),
         _gate_of((512, 8192, 0, 16384, 16384))),
        _gate,
    ),
}  # fmt: skip
