"""Problems of the row operators of a prompt: `problems` for the overlay `gemm` on AIE2P."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.bringup import references as ref
from ort_aie_ep.bringup.problem import (
    EPS,
    Buffers,
    Context,
    Output,
    Problem,
    doubles,
    generator,
    nan,
)
from ort_aie_ep.bringup.references import BF16, Reference, bf16, bits
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


def _add_norm(context: Context, p: dict[str, int]) -> Problem:
    rows, k, n, rng = max(p["M"], 64), p["K"], p["n"], generator(p)
    x, other, weight = np.zeros((rows, k)), np.zeros((rows, k)), np.zeros(k)
    x[:, :n], other[:, :n] = bf16(rng.standard_normal((2, rows, n)))
    weight[:n] = bf16(rng.uniform(0.5, 1.5, n))
    total = bf16(x + p["residual"] * other)

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        outputs = []
        if p["residual"]:
            exactly = Reference(total, np.zeros_like(total))
            outputs.append(Output("sum", doubles(after["sum"]), exactly))
        if p["norm"]:
            expected = ref.rounded(ref.normalised(total, weight, n, EPS), ref.NORM)
            outputs.append(Output("y", doubles(after["y"]), expected))
        return outputs

    with_residual, with_norm = rows * p["residual"], rows * p["norm"]
    buffers = {
        "x": x.astype(BF16), "residual": other[:with_residual].astype(BF16),
        "weight": weight[: k * p["norm"]].astype(BF16), "sum": nan(with_residual, k),
        "y": nan(with_norm, k),
    }  # fmt: skip
    return Problem("add_norm", p, buffers, judge)


def _rotation(p: dict[str, int], heads: int) -> tuple[Buffers, Reference]:
    """Inputs of a rotation, and heads (M, heads, head_dim)."""
    rows, head_dim, rotary_dim, rng = max(p["M"], 64), p["head_dim"], p["rotary_dim"], generator(p)
    width = heads * head_dim
    x = bf16(rng.standard_normal((rows, p["x_stride"])))
    weight = bf16(rng.uniform(0.5, 1.5, head_dim))
    table = ref.rotation_table(1000 + rows, rotary_dim)[1000:]
    behind = (256 - rotary_dim) // 2 if rotary_dim else 0
    buffers = {
        "x": x.astype(BF16).reshape(-1)[: (rows - 1) * p["x_stride"] + width],
        "weight": weight[: head_dim * p["norm"]].astype(BF16),
        "table": np.concatenate([table[:, :rotary_dim].astype(BF16).reshape(-1), nan(behind)]),
    }
    seen = x[: p["M"], :width].reshape(-1, heads, head_dim)
    if p["norm"]:
        seen = ref.normalised(seen, weight, head_dim, EPS)
    exact = ref.rope(seen, table[: p["M"]], rotary_dim, p["interleaved"], p["norm"])
    return buffers, exact


def _rotate(context: Context, p: dict[str, int]) -> Problem:
    buffers, expected = _rotation(p, p["heads"])

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        return [Output("y", doubles(after["y"][: p["M"]]), expected)]

    y = nan(max(p["M"], 64), p["heads"], p["head_dim"])
    return Problem("rotate", p, buffers | {"y": y}, judge)


def _append_rows(context: Context, p: dict[str, int]) -> Problem:
    buffers, expected = _rotation(p, p["kv_heads"])
    new = slice(p["position"], p["position"] + p["M"])
    before = bf16(generator(p).standard_normal((p["kv_heads"], p["capacity"], p["head_dim"])))

    def judge(after: Mapping[str, NDArray[Any]]) -> list[Output]:
        blocks = doubles(after["cache"])
        rows = blocks.transpose(0, 1, 3, 2, 4).reshape(before.shape)
        untouched = before.copy()
        untouched[:, new] = rows[:, new]
        return [
            Output("new keys", rows[:, new].transpose(1, 0, 2), expected),
            Output("other keys", rows, Reference(untouched, np.zeros_like(untouched))),
        ]

    cache = np.ascontiguousarray(ref.in_cache(before, p["capacity"]))
    return Problem("append_rows", p, buffers | {"cache": cache}, judge)


def _shapes_of(
    names: tuple[str, ...], *shapes: tuple[int, ...]
) -> Callable[[Device], Iterator[dict[str, int]]]:
    return lambda device: iter([dict(zip(names, shape, strict=True)) for shape in shapes])


_gate_of = partial(_shapes_of, ("M", "N", "kind", "gate_stride", "up_stride"))
_add_norm_of = partial(_shapes_of, ("M", "K", "n", "residual", "norm", "eps_bits"))
_rotate_of = partial(
    _shapes_of,
    ("M", "heads", "head_dim", "rotary_dim", "interleaved", "norm", "eps_bits", "x_stride"),
)
_append_rows_of = partial(
    _shapes_of,
    (
        "M", "kv_heads", "head_dim", "rotary_dim", "interleaved", "norm", "eps_bits", "x_stride",
        "position", "capacity",
    ),
)  # fmt: skip


#: By sequence: ((small shapes, typical shapes), the problem of one).
KNOWN: dict[str, tuple[tuple[Callable[..., Any], Callable[..., Any]], Any]] = {
    "gate": (
        (_gate_of((1, 256, 0, 256, 256), (130, 700, 1, 1400, 702)),
         _gate_of((512, 8192, 0, 16384, 16384))),
        _gate,
    ),
    "add_norm": (
        (_add_norm_of((64, 256, 256, 1, 1, bits(EPS)), (130, 768, 576, 0, 1, bits(EPS)),
                      (70, 512, 512, 1, 0, 0)),
         _add_norm_of((512, 2048, 2048, 1, 1, bits(EPS)))),
        _add_norm,
    ),
    "rotate": (
        (_rotate_of((64, 4, 64, 64, 0, 0, 0, 256), (70, 3, 128, 128, 0, 1, bits(EPS), 400),
                    (7, 2, 64, 32, 1, 0, 0, 128)),
         _rotate_of((512, 32, 64, 64, 0, 0, 0, 3072))),
        _rotate,
    ),
    "append_rows": (
        (_append_rows_of((64, 4, 64, 64, 0, 0, 0, 256, 0, 64),
                         (72, 5, 128, 128, 0, 1, bits(EPS), 700, 8, 96)),
         _append_rows_of((512, 8, 64, 64, 0, 0, 0, 3072, 0, 1024))),
        _append_rows,
    ),
}  # fmt: skip
