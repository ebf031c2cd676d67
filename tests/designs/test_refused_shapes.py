"""Shapes and devices that designs do not take: the message names the number."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ort_aie_ep.aie_kernels.build import find_designs
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.reference import EPS, bits
from ort_aie_ep.bringup.problems import LLAMA
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import Device, device
from ort_aie_ep.npu.terms.errors import DesignError

ATTENTION = {"heads": 4, "kv_heads": 2, "head_dim": 64, "capacity": 64, "window": 0,
             "scale_bits": bits(0.125), "softcap_bits": 0}  # fmt: skip
ROTATION = {"M": 64, "head_dim": 64, "rotary_dim": 64, "interleaved": 0, "norm": 0,
            "eps_bits": bits(EPS), "x_stride": 512}  # fmt: skip
GEMM, MICRO = {"M": 64, "K": 256, "N": 512}, {"bytes": 8192, "lanes": 1, "first": 0}

#: (design, device, sequence, a shape that it takes): changes, and what the message says.
REFUSED: list[tuple[tuple[str, str, str, dict[str, int]], list[tuple[dict[str, int], str]]]] = [
    (("flow_kv", "npu2", "attention", ATTENTION | {"context": 64}), [
        ({"heads": 7}, "heads=7 must be a multiple of kv_heads=2"),
        ({"head_dim": 96}, "head_dim=96 must be 64, 128 or 256"),
        ({"capacity": 100}, "capacity=100 must be a multiple"),
        ({"context": 65}, "capacity=64 has no room"),
        ({"context": 0}, "there must be a key"),
        ({"window": -1}, "window=-1 must be 0"),
    ]),
    (("flow_qkv", "npu2", "attention", ATTENTION | {"prompt": 40, "past": 0, "causal": 1}), [
        ({"heads": 7}, "heads=7 must be a multiple of kv_heads=2"),
        ({"head_dim": 80}, "head_dim=80 must be 64, 128 or 256"),
        ({"capacity": 100}, "capacity=100 must be a multiple"),
        ({"past": 30}, "capacity=64 has no room"),
        ({"past": -1}, "past=-1 must not be negative"),
        ({"prompt": 0}, "there must be a query"),
        ({"window": -1}, "window=-1 must be 0"),
    ]),
    (("fused_dqp", "npu2", "matvec", {"N": 128, "K": 256, "bias": 0}), [
        ({"N": 100}, "N=100 must be a multiple of 32"),
        ({"N": 96}, "at least 128"),
        ({"K": 200}, "K=200 must be a multiple of 256"),
        ({"K": 32768}, "above 16384"),
    ]),
    (("fused_layer", "npu2", "layer", LLAMA), [
        ({"hidden": 300}, "hidden=300 must be a multiple of 256"),
        ({"heads": 56, "head_dim": 256, "kv_heads": 7}, "have more than 13056 elements"),
        ({"ffn": 1000}, "ffn=1000 must be a multiple of 256"),
        ({"hidden": 8192, "ffn": 16384}, "together are above 22528"),
        ({"heads": 2, "kv_heads": 1}, "must have a multiple of 256 elements"),
        ({"heads": 80, "kv_heads": 80, "head_dim": 256}, "queries, keys and values have more than"),
        ({"heads": 64, "kv_heads": 4, "head_dim": 256}, "a sweep holds 2048"),
        ({"kv_heads": 1, "head_dim": 512}, "head_dim=512 is above 256"),
        ({"rotary_dim": 80}, "rotary_dim=80 must be a multiple of 32"),
        ({"context": 129}, "capacity=128 has no room"),
    ]),
    (("gemm", "npu2", "gemm", GEMM), [
        ({"K": 320}, "K=320 must be a multiple of 256"),
        ({"K": 65792}, "K=65792 is above 65536"),
        ({"N": 500}, "N=500 must be a multiple of 32"),
        ({"N": 96}, "N=96 must be at least 128"),
    ]),
    (("gemm", "npu2_2col", "gemm", GEMM), [({"N": 224}, "N=224 must be at least 256")]),
    (("gemm", "npu2_1col", "gemm", GEMM), [({"N": 480}, "N=480 must be at least 512")]),
    (("short_gemm", "npu2_1col", "project", GEMM), [
        ({"K": 16640}, "K=16640 is above 16384"),
        ({"N": 500}, "N=500 must be a multiple of 32"),
        ({"N": 224}, "N=224 must be at least 256"),
    ]),
    (("gemm", "npu2", "gate", {"M": 64, "N": 512, "kind": 0}), [
        ({"N": 254}, "N=254 must be even and at least 256"),
        ({"N": 65538}, "N=65538 is above 65536"),
    ]),
    (("gemm", "npu2", "add_norm", {"M": 64, "K": 512, "n": 512, "residual": 1, "norm": 1,
                                   "eps_bits": bits(EPS)}), [
        ({"K": 384}, "K=384 must be a multiple of 256"),
        ({"K": 7424}, "K=7424 is above 7168"),
        ({"n": 513}, "n=513 must be at least 1 and at most K=512"),
        ({"residual": 0, "norm": 0}, "residual and norm are both 0"),
    ]),
    (("gemm", "npu2", "rotate", ROTATION | {"heads": 8}), [
        ({"head_dim": 96}, "head_dim=96 must be 64, 128 or 256"),
        ({"heads": 1}, "heads=1 x head_dim=64 must be at least 128"),
        ({"heads": 2000}, "heads=2000: above 65536 columns"),
        ({"rotary_dim": 48}, "rotary_dim=48 must be a multiple of 32"),
        ({"rotary_dim": 128}, "rotary_dim=128 must be a multiple of 32 up to head_dim=64"),
        ({"x_stride": 510}, "x_stride=510 must be even, and at least heads x head_dim"),
    ]),
    (("gemm", "npu2", "append_rows", ROTATION | {"kv_heads": 8, "position": 0, "capacity": 72}), [
        ({"M": 56}, "M=56 must be a multiple of 8, and at least 64"),
        ({"M": 68}, "M=68 must be a multiple of 8"),
        ({"position": 4}, "position=4 must be a multiple of 8 keys"),
        ({"position": -8}, "position=-8 must be .* not negative"),
        ({"capacity": 100}, "capacity=100 must be a multiple of 8 keys"),
        ({"position": 16}, "capacity=72 has no room for the new keys"),
        ({"kv_heads": 1}, "kv_heads=1 x head_dim=64 must be at least 128"),
        ({"capacity": 32776}, "capacity=32776: heads of 64 that are more than 4194304 bytes apart"),
    ]),
    (("vector_ops", "npu2", "rms_norm", {"n": 128, "residual": 0, "eps_bits": 0}), [
        ({"n": 16400}, "above 16384"),
    ]),
    (("vector_ops", "npu2", "glu", {"n": 256, "kind": 0}), [
        ({"n": 128}, "n=128 must be even and at least 256"), ({"kind": 2}, "kind=2 must be 0"),
    ]),
    (("vector_ops", "npu2", "rope", {"heads": 4, "head_dim": 64, "rotary_dim": 64, "interleaved": 0,
                                     "norm": 0, "eps_bits": 0}), [
        ({"heads": 3}, "3 x 64 elements"),
        ({"head_dim": 80}, "head_dim=80 must be 64, 128 or 256"),
        ({"rotary_dim": 20}, "rotary_dim=20 must be a multiple of 32"),
    ]),
    (("vector_ops", "npu2", "move_heads", {"heads": 4, "dim": 96, "x_stride": 96, "y_stride": 128,
                                           "copies": 2}), [
        ({"copies": 1}, "copies=1 of heads=4 x dim=96 must be a multiple of 256"),
        ({"copies": 0}, "copies=0"),
        ({"dim": 90}, "dim=90 must be a multiple of 8"),
        ({"y_stride": 64}, "y_stride=64 must be even, and at least dim=96"),
    ]),
    (("vector_ops", "npu2", "append", {"kv_heads": 4, "head_dim": 64, "position": 0,
                                       "capacity": 64}), [
        ({"kv_heads": 9}, "kv_heads=9 x head_dim=64 must be a multiple of 256"),
        ({"position": 64}, "capacity=64 has no room"),
        ({"position": -1}, "position=-1 must not be negative"),
    ]),
    (("micro", "npu2_2col", "read", MICRO), [
        ({"bytes": 8191}, "positive multiple of 8,192"), ({"bytes": 0}, "0 bytes a lane"),
    ]),
    (("micro", "npu2_2col", "passthrough", MICRO), [
        ({"lanes": 2, "first": 2}, "2 lanes from 2 on; there are 3"),
    ]),
    (("micro", "npu2_2col", "write", MICRO | {"calls": 1}), [
        ({"calls": 0}, "0 calls for a copy"),
    ]),
    (("micro", "npu2_2col", "two_ids", {"objects": 1}), [({"objects": 3}, "expected 1 to 2")]),
    (("dequant", "npu2", "dequant", {"blocks": 4}), [({"blocks": 3}, "3 Q4NX blocks")]),
]  # fmt: skip


@cache
def session_of(design: str, on: str) -> Session:
    return Session(find_designs()[design](device(on)))


@pytest.mark.parametrize(("of", "changes"), REFUSED, ids=["-".join(of[:3]) for of, _ in REFUSED])
def test_shapes_that_a_sequence_cannot_take_are_refused(
    of: tuple[str, str, str, dict[str, int]], changes: list[tuple[dict[str, int], str]]
) -> None:
    design, on, sequence, shape = of
    session = session_of(design, on)
    places = {a.name: (0, 0) for a in session.design.sequences[sequence].arguments}
    assert session.build(sequence, shape, places)
    for change, message in changes:
        with pytest.raises(DesignError, match=message):
            session.build(sequence, shape | change, places)


@pytest.mark.parametrize(
    ("name", "on", "message"),
    [
        ("flow_kv", "npu2_1col", "the cores of a pair need two"),
        ("flow_qkv", "npu2_1col", "it runs on 2, 4 or 8"),
        ("vector_ops", "npu2_1col", "take the shims of two"),
        *((name, "npu1", "aie2p") for name in ("flow_kv", "flow_qkv", "vector_ops")),
        *((name, "npu1", "aie2 has no bfp16") for name in ("gemm_bfp16", "dequant_bfp16")),
        *((name, "npu2_4col", "4 columns") for name in ("fused_layer", "decode")),
    ],
)
def test_devices_that_cannot_run_a_design_are_refused(name: str, on: str, message: str) -> None:
    with pytest.raises(DesignError, match=message):
        find_designs()[name](device(on))


def test_columns_that_a_design_cannot_use_are_refused() -> None:
    with pytest.raises(DesignError, match="npu1 has 1 to 4"):
        fused_dqp.build(device("npu1"), 5)
    three: Any = Device("three", "aie2p", 4, 3, clock_hz=1.8e9, alignment=64)
    with pytest.raises(DesignError, match="3 columns"):
        find_designs()["gemm"](three)
