"""The shapes that `ort-aie validate` tries, of every sequence of every design.

First small ones, at the edges that the designs' tests know, then those of a layer of a model of
10^9 weights (Llama 3.2 1B: hidden size 2048, 32 heads of 64 with 8 for keys and values, 8192
between). The problems themselves are the operators' (`aie_kernels/*/reference.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any

from ort_aie_ep.aie_kernels.dequant import reference as dequant
from ort_aie_ep.aie_kernels.flow_kv import reference as flow_kv
from ort_aie_ep.aie_kernels.flow_qkv import reference as flow_qkv
from ort_aie_ep.aie_kernels.fused_dqp import reference as fused_dqp
from ort_aie_ep.aie_kernels.fused_layer import reference as fused_layer
from ort_aie_ep.aie_kernels.gemm import reference as gemm
from ort_aie_ep.aie_kernels.gemm import row_reference as rows
from ort_aie_ep.aie_kernels.micro import reference as micro
from ort_aie_ep.aie_kernels.reference import EPS, Context, Problem, bits
from ort_aie_ep.aie_kernels.short_gemm import reference as short_gemm
from ort_aie_ep.aie_kernels.vector_ops import reference as vector_ops
from ort_aie_ep.npu.packages.package import form_of
from ort_aie_ep.npu.terms.device import Device

CHUNK = 4096  # elements of K or V that the attention designs fetch at a time

Parameters = dict[str, int]


@dataclass(frozen=True)
class Shape:
    """A problem before it is made; `typical` is of a layer, otherwise small."""

    parameters: Parameters
    typical: bool
    make: Callable[[], Problem]


def shapes(manifest: Mapping[str, Any], device: Device, sequence: str) -> list[Shape]:
    """The shapes to run for a sequence of a package, small ones first.

    Empty if the sequence is unknown, or has other parameters than expected.
    """
    described = manifest["sequences"][sequence]
    places = {a["name"]: a["bytes"] for a in described["arguments"]}
    context = Context(device, places, form_of(manifest))
    return [
        Shape(parameters, typical, partial(make, context, parameters))
        for name, make, small_ones, typical_ones in _table(device)
        for typical, each in ((False, small_ones), (True, typical_ones))
        for parameters in each
        if name == sequence and parameters.keys() == set(described["parameters"])
    ]


#: A sequence, how a problem of it is made, and of which shapes: small ones, and of a layer.
_Row = tuple[str, Callable[[Context, Parameters], Problem], list[Parameters], list[Parameters]]


def _table(device: Device) -> list[_Row]:
    """All that is known; two designs have a sequence `attention`, with other parameters."""
    return [*_projections(), *_attention(), *_vectors(), *_rows(), *_layers(), *_copies(device)]


def _each(names: str, *values: tuple[int, ...], **more: int) -> list[Parameters]:
    return [dict(zip(names.split(), each, strict=True)) | more for each in values]


def _projections() -> Iterator[_Row]:
    whole = (
        _each("N K bias", (128, 256, 0), (544, 256, 1), (512, 768, 1)),
        _each("N K bias", (2048, 2048, 0), (3072, 2048, 0), (16384, 2048, 0), (2048, 8192, 0)),
    )
    part = (
        _each("N K row_K bias", (128, 256, 512, 0), (544, 512, 768, 1)),
        _each("N K row_K bias", (5120, 8704, 17408, 1)),
    )
    yield "matvec", fused_dqp.problem, *whole
    yield "matvec_part", fused_dqp.part_problem, *part
    yield (
        "dequant",
        dequant.problem,
        _each("blocks", (4,), (5,), (37,)),
        _each("blocks", (512,), (2048,)),
    )
    small = _each("M K N", (64, 256, 512), (7, 256, 544), (130, 512, 736))
    layer = _each("M K N", (128, 2048, 2048), (512, 2048, 8192))
    yield "gemm", gemm.problem, small, layer
    few = _each("M K N", (64, 2048, 2048), (64, 2048, 8192))
    yield "project", short_gemm.problem, small, few


def _attention() -> Iterator[_Row]:
    def one(*values: tuple[int, ...]) -> list[Parameters]:
        return [
            _in_cache(each, each["context"], each["head_dim"])
            for each in _each("heads kv_heads head_dim context window", *values)
        ]

    def prompt(*values: tuple[int, ...]) -> list[Parameters]:
        names = "heads kv_heads head_dim prompt past window"
        return [
            _in_cache(each, each["past"] + each["prompt"], each["head_dim"])
            for each in _each(names, *values, causal=1)
        ]

    yield (
        "attention",
        flow_kv.problem,
        one((4, 2, 64, 1, 0), (4, 2, 64, 65, 0), (9, 1, 256, 33, 20), (5, 5, 128, 140, 0)),
        one((32, 8, 64, 1024, 0), (32, 8, 64, 4096, 0)),
    )
    yield (
        "attention",
        flow_qkv.problem,
        prompt(
            (4, 4, 64, 1, 0, 0),
            (8, 8, 64, 33, 37, 0),
            (7, 1, 128, 45, 3, 0),
            (4, 2, 128, 70, 20, 16),
        ),
        prompt((32, 8, 64, 128, 0, 0), (32, 8, 64, 512, 512, 0)),
    )


def _in_cache(shape: Parameters, keys: int, head_dim: int) -> Parameters:
    chunk = CHUNK // head_dim
    scale = {"scale_bits": bits(head_dim**-0.5), "softcap_bits": 0}
    return shape | scale | {"capacity": -(-keys // chunk) * chunk}


def _vectors() -> Iterator[_Row]:
    norm = partial(_each, "n residual", eps_bits=bits(EPS))
    yield "rms_norm", vector_ops.rms_norm_problem, norm((128, 0), (200, 1)), norm((2048, 1))
    rope = partial(_each, "heads head_dim rotary_dim norm", interleaved=0, eps_bits=bits(EPS))
    yield (
        "rope",
        vector_ops.rope_problem,
        rope((4, 64, 64, 0), (9, 64, 64, 1)),
        rope((32, 64, 64, 0)),
    )
    append = partial(_each, "kv_heads head_dim position capacity")
    yield (
        "append",
        vector_ops.append_problem,
        append((4, 64, 5, 64), (2, 128, 8, 64)),
        append((8, 64, 1000, 1024)),
    )

    def moved(*values: tuple[int, ...]) -> list[Parameters]:
        every = _each("heads dim x_stride y_stride", *values)
        return [each | {"copies": 256 // gcd(256, each["heads"] * each["dim"])} for each in every]

    yield (
        "move_heads",
        vector_ops.move_heads_problem,
        moved((8, 96, 96, 128), (8, 96, 128, 96), (2, 32, 32, 64)),
        moved((32, 96, 96, 128)),
    )
    glu = partial(_each, "n kind")
    yield "glu", vector_ops.glu_problem, glu((256, 0), (700, 1)), glu((8192, 0))


def _rows() -> Iterator[_Row]:
    gate = partial(_each, "M N kind")
    yield ("gate", rows.gate, gate((1, 256, 0), (130, 700, 1)), gate((512, 8192, 0)))
    norm = partial(_each, "M K n residual norm eps_bits")
    eps = bits(EPS)
    yield (
        "add_norm",
        rows.add_norm,
        norm((64, 256, 256, 1, 1, eps), (130, 768, 576, 0, 1, eps), (70, 512, 512, 1, 0, 0)),
        norm((512, 2048, 2048, 1, 1, eps)),
    )
    heads = "head_dim rotary_dim interleaved norm eps_bits x_stride"
    rotate = partial(_each, f"M heads {heads}")
    yield "rotate", rows.rotate, rotate(
        (64, 4, 64, 64, 0, 0, 0, 256), (70, 3, 128, 128, 0, 1, eps, 400),
        (7, 2, 64, 32, 1, 0, 0, 128),
    ), rotate((512, 32, 64, 64, 0, 0, 0, 3072))  # fmt: skip
    append = partial(_each, f"M kv_heads {heads} position capacity")
    yield (
        "append_rows",
        rows.append_rows,
        append((64, 4, 64, 64, 0, 0, 0, 256, 0, 64), (72, 5, 128, 128, 0, 1, eps, 700, 8, 96)),
        append((512, 8, 64, 64, 0, 0, 0, 3072, 0, 1024)),
    )


LLAMA = {
    "hidden": 512, "heads": 8, "kv_heads": 4, "head_dim": 64, "rotary_dim": 64, "interleaved": 0,
    "ffn": 1024, "gelu": 0, "head_norm": 0, "post_norm": 0, "bias": 0, "context": 70,
    "capacity": 128, "window": 0, "scale_bits": bits(64**-0.5), "softcap_bits": 0,
    "eps_bits": bits(1e-5),
}  # fmt: skip
GEMMA = LLAMA | {
    "heads": 4, "kv_heads": 2, "head_dim": 256, "rotary_dim": 256, "ffn": 2560, "gelu": 1,
    "head_norm": 1, "post_norm": 1, "context": 61, "capacity": 64, "window": 20,
    "scale_bits": bits(1 / 16),
}  # fmt: skip
LLAMA_1B = LLAMA | {
    "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "context": 1024, "capacity": 1024,
}  # fmt: skip


def _layers() -> Iterator[_Row]:
    yield "layer", fused_layer.problem, [LLAMA, GEMMA], [LLAMA_1B]
    head = partial(_each, "N hidden", eps_bits=bits(1e-6))
    yield "head", fused_layer.head_problem, head((512, 512), (1120, 256)), head((128256, 2048))


def _copies(device: Device) -> Iterator[_Row]:
    def lanes(*sizes: int, **more: int) -> list[Parameters]:
        """The first lane, all lanes of channel 0, both channels of the last column."""
        columns = device.columns
        every = [(1, 0), (columns, 0), (columns, columns // 2)] if columns > 1 else [(1, 0)]
        values = [(size, *each) for size in sizes for each in every]
        return _each("bytes lanes first", *values, **more)

    object_bytes = 2 * micro.OBJECT
    yield "passthrough", micro.passthrough, lanes(object_bytes, 5 * object_bytes), lanes(1 << 20)
    yield "read", micro.read, lanes(3 * object_bytes), lanes(1 << 20)
    yield "write", micro.write, lanes(3 * object_bytes, calls=1), lanes(1 << 20, calls=1)
    yield "two_ids", micro.two_ids, _each("objects", (1,), (2,)), []
    yield "read_small", micro.read_small, _each("objects", (1,), (9,)), _each("objects", (2048,))
