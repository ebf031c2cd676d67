"""A decoder layer as one stream on the decode overlay, each step compared with numpy."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from attention_reference import BF16, U_BF16, U_LIMBS, Doubles, bf16, bits, scores, weights

from ort_aie_ep import _npu
from ort_aie_ep.aie_kernels.decode import design as decode
from ort_aie_ep.aie_kernels.flow_kv import design as flow_kv
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.vector_ops import design as vector_ops
from ort_aie_ep.formats import q4nx
from ort_aie_ep.npu.packages.package import manifest
from ort_aie_ep.npu.simulator.machine import Machine, Result
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError

EPS = 1e-6
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 512, 4, 2, 128, 768
CAPACITY, POSITION = 64, 37
SCALE = HEAD_DIM**-0.5
NORM = 2.0**-20 + 2 * U_LIMBS
ACTIVATION = 2.0**-13 + 2 * U_LIMBS + 16 * U_LIMBS

#: Elements of the activations, in the layer's order of writing.
SIZES = {
    "x": HIDDEN, "normed": HIDDEN, "qkv": (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    "q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "o": HEADS * HEAD_DIM,
    "projected": HIDDEN, "residual": HIDDEN,
    "normed_again": HIDDEN, "gate_up": 2 * INTERMEDIATE, "gated": INTERMEDIATE, "down": HIDDEN,
    "out": HIDDEN, "normed_out": HIDDEN,
}  # fmt: skip
MATRICES = {  # name: (N, K)
    "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN), "o": (HIDDEN, HEADS * HEAD_DIM),
    "gate_up": (2 * INTERMEDIATE, HIDDEN), "down": (HIDDEN, INTERMEDIATE),
}  # fmt: skip


@dataclass
class Layer:
    """A layer's host buffers, and its steps in the form of `_npu.build`."""

    seed: int
    buffers: list[tuple[str, np.ndarray]] = field(init=False)
    matrices: dict[str, Doubles] = field(init=False)
    steps: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.offsets = dict(zip(SIZES, np.cumsum([0, *SIZES.values()]) * 2, strict=False))
        activations = np.full(sum(SIZES.values()), np.nan, BF16)
        activations[:HIDDEN] = rng.standard_normal(HIDDEN)
        self.norms = bf16(rng.uniform(0.5, 1.5, (3, HIDDEN)))
        angles = np.arange(CAPACITY)[:, None] * 10000.0 ** (-np.arange(HEAD_DIM // 2) / 64)
        self.table = np.zeros((CAPACITY, 256))
        self.table[:, :HEAD_DIM] = np.hstack([np.cos(angles), np.sin(angles)])
        self.table = bf16(self.table)
        constants = np.concatenate([self.norms.reshape(-1), self.table.reshape(-1)]).astype(BF16)
        packed, self.places, self.matrices = b"", {}, {}
        for name, (n, k) in MATRICES.items():
            codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
            scales = (rng.uniform(0.5, 1.5, (n, k // 32)) * 0.02).astype(BF16)
            mins = (-8 * scales.astype(np.float64)).astype(BF16)
            self.matrices[name] = codes * np.repeat(scales.astype(np.float64), 32, 1)
            self.matrices[name] += np.repeat(mins.astype(np.float64), 32, 1)
            self.places[name] = len(packed)
            packed += q4nx.pack(codes, scales, mins).tobytes()
        shape = (KV_HEADS, CAPACITY // 8, HEAD_DIM // 8, 8, 8)
        self.buffers = [
            ("activations", activations),
            ("weights", np.frombuffer(packed, np.uint8).copy()),
            ("constants", constants),
            ("k", rng.standard_normal(shape).astype(BF16)),
            ("v", rng.standard_normal(shape).astype(BF16)),
        ]
        self.steps = []
        self._write()

    def _add(self, sequence: str, parameters: dict[str, int], **places: tuple[int, int]) -> None:
        self.steps.append({"sequence": sequence, "parameters": parameters, "arguments": places})

    def at(self, name: str, element: int = 0) -> tuple[int, int]:
        """(buffer, byte offset) of an activation."""
        return 0, int(self.offsets[name]) + 2 * element

    def _matvec(self, matrix: str, x: str, y: str) -> None:
        n, k = MATRICES[matrix]
        self._add(
            "matvec", {"N": n, "K": k, "bias": 0},
            x=self.at(x), w=(1, self.places[matrix]), bias=(1, 0), y=self.at(y),
        )  # fmt: skip

    def _norm(self, index: int, x: str, y: str, residual: str = "x", total: str = "") -> None:
        self._add(
            "rms_norm",
            {"n": HIDDEN, "residual": int(bool(total)), "eps_bits": bits(EPS)},
            x=self.at(x), residual=self.at(residual), weight=(2, 2 * HIDDEN * index),
            sum=self.at(total or "x"), y=self.at(y),
        )  # fmt: skip

    def _write(self) -> None:
        rope = {
            "head_dim": HEAD_DIM, "rotary_dim": HEAD_DIM, "interleaved": 0, "norm": 0,
            "eps_bits": 0,
        }  # fmt: skip
        tables = {"weight": (2, 0), "table": (2, 2 * (3 * HIDDEN + 256 * POSITION))}
        cached = {
            "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "position": POSITION, "capacity": CAPACITY,
        }  # fmt: skip
        first_k, first_v = HEADS * HEAD_DIM, (HEADS + KV_HEADS) * HEAD_DIM
        self._norm(0, "x", "normed")
        self._matvec("qkv", "normed", "qkv")
        self._add("rope", {"heads": HEADS} | rope, x=self.at("qkv"), y=self.at("q"), **tables)
        self._add(
            "rope", {"heads": KV_HEADS} | rope, x=self.at("qkv", first_k), y=self.at("k"), **tables
        )
        for x, cache in ((self.at("k"), 3), (self.at("qkv", first_v), 4)):
            self._add("append", cached, x=x, table=tables["table"], cache=(cache, 0))
        self._add(
            "attention",
            {
                "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
                "context": POSITION + 1, "capacity": CAPACITY, "window": 0,
                "scale_bits": bits(SCALE), "softcap_bits": 0,
            },
            q=self.at("q"), k=(3, 0), v=(4, 0), o=self.at("o"),
        )  # fmt: skip
        self._matvec("o", "o", "projected")
        self._norm(1, "projected", "normed_again", "x", "residual")
        self._matvec("gate_up", "normed_again", "gate_up")
        self._add(
            "glu", {"n": INTERMEDIATE, "kind": 0},
            gate_up=self.at("gate_up"), y=self.at("gated"),
        )  # fmt: skip
        self._matvec("down", "gated", "down")
        self._norm(2, "down", "normed_out", "residual", "out")

    def run(self, machine: Machine, described: str) -> list[Result]:
        """Runs all steps, in as many runs as the interpreter makes of them."""
        bytes_of = [(name, array.reshape(-1).view(np.uint8)) for name, array in self.buffers]
        return [
            machine.run(np.asarray(run["words"]), bytes_of)
            for run in _npu.build(described, self.steps)
        ]

    def __getitem__(self, name: str) -> Doubles:
        """An activation after the run."""
        first = self.offsets[name] // 2
        return self.buffers[0][1][first : first + SIZES[name]].astype(np.float64)

    def cache(self, name: str) -> Doubles:
        """(kv_heads, capacity, head_dim)"""
        blocks = dict(self.buffers)[name].astype(np.float64)
        return blocks.transpose(0, 1, 3, 2, 4).reshape(KV_HEADS, CAPACITY, HEAD_DIM)

    def rotated(self, heads: Doubles) -> Doubles:
        """(heads, head_dim) by the token's position."""
        cosine, sine = np.split(self.table[POSITION, :HEAD_DIM], 2)
        a, b = np.split(heads, 2, axis=-1)
        return np.hstack([a * cosine - b * sine, b * cosine + a * sine])


@pytest.fixture(scope="module")
def design() -> Design:
    return decode.build(device("npu2"))


@pytest.fixture(scope="module")
def layer(design: Design) -> tuple[Layer, list[Result]]:
    made = Layer(seed=1)
    return made, made.run(Machine(design), json.dumps(manifest(design)))


def assert_rounded(got: Doubles, exact: Doubles, error: Doubles | float) -> None:
    """The bound for one rounding to bfloat16 of a value that may be off by `error`."""
    assert np.isfinite(got).all()
    assert (np.abs(got - exact) <= U_BF16 * np.abs(exact) + error).all()


def test_layer_is_one_stream(layer: tuple[Layer, list[Result]]) -> None:
    assert len(layer[1]) == 1


@pytest.mark.parametrize(
    ("matrix", "x", "y"),
    [("qkv", "normed", "qkv"), ("o", "o", "projected"), ("gate_up", "normed_again", "gate_up"),
     ("down", "gated", "down")],
)  # fmt: skip
def test_projections(layer: tuple[Layer, list[Result]], matrix: str, x: str, y: str) -> None:
    made = layer[0]
    w, v = made.matrices[matrix], made[x]
    # Sums in fp32 over K, which the kernel narrows once per group to two limbs.
    mass = np.abs(w) @ np.abs(v)
    assert_rounded(made[y], w @ v, mass * (len(v) * 2.0**-24 + 2.0**-16))


@pytest.mark.parametrize(
    ("index", "x", "y"),
    [(0, "x", "normed"), (1, "residual", "normed_again"), (2, "out", "normed_out")],
)
def test_norms(layer: tuple[Layer, list[Result]], index: int, x: str, y: str) -> None:
    made = layer[0]
    row = made[x]
    exact = row / np.sqrt((row**2).mean() + EPS) * made.norms[index]
    assert_rounded(made[y], exact, NORM * np.abs(exact))


@pytest.mark.parametrize(
    ("a", "b", "total"), [("x", "projected", "residual"), ("residual", "down", "out")]
)
def test_residuals(layer: tuple[Layer, list[Result]], a: str, b: str, total: str) -> None:
    made = layer[0]
    np.testing.assert_array_equal(made[total], bf16(made[a] + made[b]))


def test_queries_are_rotated_and_keys_and_values_cached(layer: tuple[Layer, list[Result]]) -> None:
    made = layer[0]
    q, k, v = np.split(made["qkv"].reshape(-1, HEAD_DIM), [HEADS, HEADS + KV_HEADS])
    for got, heads in ((made["q"].reshape(q.shape), q), (made.cache("k")[:, POSITION], k)):
        # A rotation adds two products in fp32.
        assert_rounded(got, made.rotated(heads), 2.0**-21 * np.abs(heads).max())
    np.testing.assert_array_equal(made.cache("v")[:, POSITION], v)


def test_rest_of_the_cache_is_untouched(layer: tuple[Layer, list[Result]]) -> None:
    before = Layer(seed=1)
    others = np.arange(CAPACITY) != POSITION
    for name in ("k", "v"):
        np.testing.assert_array_equal(
            layer[0].cache(name)[:, others], before.cache(name)[:, others]
        )


def test_attention_sees_the_new_key(layer: tuple[Layer, list[Result]]) -> None:
    made = layer[0]
    q, o = made["q"].reshape(HEADS, HEAD_DIM), made["o"].reshape(HEADS, HEAD_DIM)
    for head in range(HEADS):
        kv = head // (HEADS // KV_HEADS)
        k, v = made.cache("k")[kv, : POSITION + 1], made.cache("v")[kv, : POSITION + 1]
        s = scores(q[head : head + 1], k, SCALE)
        p = weights(s)[0]
        # As in test_flow_kv: the errors of F, the exponential and the score of each weight, twice.
        per_weight = U_BF16 + 2.0**-15 + np.abs(s).max() * U_LIMBS + 1e-4
        assert_rounded(o[head], p @ v, 2 * per_weight * (p @ np.abs(v)))


def test_gated_activation(layer: tuple[Layer, list[Result]]) -> None:
    made = layer[0]
    gate, up = np.split(made["gate_up"], 2)
    exact = gate / (1 + np.exp(-gate)) * up
    # For gates of -16 and below, the argument's error grows with them.
    relative = ACTIVATION + 3 * U_LIMBS * np.maximum(0, -gate)
    assert_rounded(made["gated"], exact, relative * np.abs(exact))


def test_overlay_has_the_sequences_of_its_parts(design: Design) -> None:
    alone: dict[str, Any] = {}
    for part in (fused_dqp.build(device("npu2"), 4), flow_kv.build(device("npu2")),
                 vector_ops.build(device("npu2"))):  # fmt: skip
        alone |= part.sequences
    assert design.sequences.keys() == alone.keys()
    for name, sequence in alone.items():
        assert design.sequences[name].to_json() == sequence.to_json()


def test_narrower_devices_are_refused() -> None:
    with pytest.raises(DesignError, match="4 columns"):
        decode.build(device("npu2_4col"))
