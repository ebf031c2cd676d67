"""How bfloat16 between the operators of a plan on an NPU changes the demonstration model's logits.

    python scripts/residual_rounding.py

The script runs the model in float64, token by token, with some kinds of values rounded to bfloat16,
and without roundings on the same caches. It prints how far the logits move, in standard deviations
of the logits (the root of the mean of squares over the vocabulary): the median over the tokens, the
limit for nine in ten, and the largest. docs/architecture.md (Numerics) has the theory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

import ort_aie_ep
from ort_aie_ep.cli.console import bar
from ort_aie_ep.formats import q4nx
from ort_aie_ep.progress import Count

# The demonstration model.
LAYERS, HIDDEN, INNER, VOCABULARY = 5, 256, 672, 4096
HEADS, KV_HEADS, DIM, EPSILON = 8, 2, 32, 1e-6
PROMPT, TOKENS = 300, 68

SUMS = frozenset({"sum"})
ALL = frozenset(
    {"input", "weight", "projection", "table", "rotation", "cache", "attention", "gate"}
)
CASES = {"the residual's sums": SUMS, "all but those": ALL, "all": ALL | SUMS}

Array = np.ndarray
Cache = list[tuple[Array, Array]]  # keys and values of each layer, (KV_HEADS, tokens, DIM)


class Model:
    """The demonstration model, with weights in float64."""

    def __init__(self, folder: Path) -> None:
        graph = onnx.load(folder / "model.onnx").graph
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.head = self._matrix("lm_head", VOCABULARY, HIDDEN)
        self.final = self._tensor(f"model.layers.{LAYERS}.final_norm_layernorm.weight")
        self.cos, self.sin = self._tensor("cos_cache"), self._tensor("sin_cache")
        self.layers = [self._layer(f"model.layers.{i}") for i in range(LAYERS)]

    def _tensor(self, name: str) -> Array:
        return numpy_helper.to_array(self._tensors[name])

    def _matrix(self, name: str, n: int, k: int) -> Array:
        blocks = self._tensor(f"{name}.MatMul.weight_Q4_q4nx")
        return q4nx.dequantize(blocks, n, k).astype(np.float64)

    def _layer(self, name: str) -> dict[str, Array]:
        return {
            "norm": self._tensor(f"{name}.input_layernorm.weight"),
            "qkv": self._matrix(f"{name}.attn.qkv_proj", (HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
            "o": self._matrix(f"{name}.attn.o_proj", HIDDEN, HEADS * DIM),
            "mlp_norm": self._tensor(f"{name}.post_attention_layernorm.weight"),
            "gate": self._matrix(f"{name}.mlp.gate_proj", INNER, HIDDEN),
            "up": self._matrix(f"{name}.mlp.up_proj", INNER, HIDDEN),
            "down": self._matrix(f"{name}.mlp.down_proj", HIDDEN, INNER),
        }

    def token(
        self, token: int, cache: Cache, rounded: frozenset[str] = frozenset()
    ) -> tuple[Array, Cache]:
        """Logits of a token after those in `cache`, and the cache that includes it."""

        def r(kind: str, x: Array) -> Array:
            return _bfloat16(x) if kind in rounded else x.astype(np.float64)

        def norm(x: Array, weight: Array) -> Array:
            y = x / np.sqrt((x * x).mean() + EPSILON) * r("weight", weight)
            return r("input", y)

        def rotated(heads: Array) -> Array:
            position, half = cache[0][0].shape[1], DIM // 2
            cos, sin = r("table", self.cos[position]), r("table", self.sin[position])
            low, high = heads[:, :half], heads[:, half:]
            return r("rotation", np.hstack([low * cos - high * sin, high * cos + low * sin]))

        x = self.head[token]
        after: Cache = []
        for layer, past in zip(self.layers, cache, strict=True):
            qkv = r("projection", layer["qkv"] @ norm(x, layer["norm"])).reshape(-1, DIM)
            query, key = rotated(qkv[:HEADS]), rotated(qkv[HEADS:-KV_HEADS])
            rows = (key, qkv[-KV_HEADS:])
            keys, values = (
                r("cache", np.concatenate([old, new[:, None]], 1))
                for old, new in zip(past, rows, strict=True)
            )
            after.append((keys, values))
            group = HEADS // KV_HEADS
            scores = np.einsum("gid,gtd->git", query.reshape(KV_HEADS, group, DIM), keys)
            weights = np.exp((scores - scores.max(-1, keepdims=True)) / np.sqrt(DIM))
            weights = r("attention", weights) / weights.sum(-1, keepdims=True)
            attended = r("attention", (weights @ values).reshape(-1))
            x = r("sum", x + r("projection", layer["o"] @ attended))
            y = norm(x, layer["mlp_norm"])
            gate, up = (r("projection", layer[name] @ y) for name in ("gate", "up"))
            inner = r("gate", gate / (1 + np.exp(-gate)) * up)
            x = r("sum", x + r("projection", layer["down"] @ inner))
        return r("projection", self.head @ norm(x, self.final)), after


def _bfloat16(x: Array) -> Array:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(ort_aie_ep.__file__).parent / "demo_model"
        ort_aie_ep.compile(source, Path(folder) / "compiled", plan=False)
        model = Model(Path(folder) / "compiled")
    ids = np.random.default_rng(0).integers(10, 900, PROMPT + TOKENS)
    nothing = np.zeros((KV_HEADS, 0, DIM))
    cache: Cache = [(nothing, nothing)] * LAYERS
    moved: dict[str, list[float]] = {name: [] for name in CASES}
    with bar("round", "tokens") as progress:
        count = Count(progress, len(ids))
        for i, token in enumerate(ids):
            exact, after = model.token(int(token), cache)
            if i >= PROMPT:
                for name, rounded in CASES.items():
                    logits, _ = model.token(int(token), cache, rounded)
                    moved[name].append(float(np.sqrt(((logits - exact) ** 2).mean()) / exact.std()))
            cache = after
            count.step()
    expected = np.sqrt(2 * LAYERS) * np.sqrt(3 / (8 * np.log(2)) / 3) * 2**-8
    print(f"{TOKENS} tokens; the residual's sums by theory: {expected:.4f}")
    print(f"{'rounded':22}{'median':>8}{'90 %':>8}{'largest':>9}")
    for name, values in moved.items():
        median, most = np.median(values), np.quantile(values, 0.9)
        print(f"{name:22}{median:8.4f}{most:8.4f}{max(values):9.4f}")


if __name__ == "__main__":
    main()
