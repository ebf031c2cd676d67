"""OpenVINO's runtime on an IR of the Llama graph, with the source's codes as u4 weights.

The graph is the one that OpenVINO's exporters make for a Llama: compressed weights as Constant,
Convert, Subtract, Multiply, Reshape; a stateful cache reordered by beam_idx before its Concat;
attention as one operator; logits of only the last position. The CPU plugin fuses each of these
patterns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError
from ort_aie_ep.tools.bench.peers.engine import (
    Model,
    Run,
    Settings,
    StepEngine,
    different_tokens,
)

if TYPE_CHECKING:
    from ort_aie_ep.tools.bench.peers.weights import (
        DecoderSizes,
        DecoderWeights,
        Floats,
        Int4Matrix,
    )

_BITS = 4.5
# Tokens of a KV block in the CPU plugin's paged attention.
_PAGE_TOKENS = 32


class _Graph:
    """Nodes of the decoder; values are OpenVINO's, untyped, (batch, sequence, width)."""

    def __init__(self, sizes: DecoderSizes) -> None:
        import openvino
        from openvino import opset13

        self.openvino, self.ops, self.sizes = openvino, opset13, sizes
        self.sinks: list[Any] = []
        self.variables: list[Any] = []

    def floats(self, values: Any) -> Any:
        return self.ops.constant(np.asarray(values, np.float32))

    def ints(self, *values: int) -> Any:
        return self.ops.constant(np.asarray(values, np.int64))

    def matrix(self, matrix: Int4Matrix) -> Any:
        """(N, K) float32, which the plugin keeps compressed."""
        ops, ov = self.ops, self.openvino
        n, k = matrix.shape
        blocks = matrix.scales.shape[1]
        dims = ov.Shape([n, blocks, k // blocks])
        codes = ov.Tensor(np.ascontiguousarray(matrix.codes), dims, ov.Type.u4)
        middle = ov.Tensor(np.array([0x08], np.uint8), ov.Shape([1, 1, 1]), ov.Type.u4)
        values = ops.convert(ov.op.Constant(codes), "f16")
        values = ops.subtract(values, ops.convert(ov.op.Constant(middle), "f16"))
        scales = ops.constant(matrix.scales.astype(np.float16)[:, :, None])
        values = ops.reshape(ops.multiply(values, scales), self.ints(n, k), False)
        return ops.convert(values, "f32")

    def linear(self, x: Any, matrix: Int4Matrix) -> Any:
        return self.ops.matmul(x, self.matrix(matrix), False, True)

    def norm(self, x: Any, weight: Floats) -> Any:
        ops = self.ops
        mean = ops.reduce_mean(ops.power(x, self.floats([[[2]]])), self.ints(-1), True)
        root = ops.sqrt(ops.add(mean, self.floats([[[self.sizes.epsilon]]])))
        x = ops.multiply(x, ops.divide(self.floats([[[1]]]), root))
        return ops.multiply(x, self.floats(weight[None, None]))

    def heads(self, x: Any, count: int) -> Any:
        """(batch, count, sequence, head size)."""
        x = self.ops.reshape(x, self.ints(0, 0, count, self.sizes.head_size), True)
        return self.ops.transpose(x, self.ints(0, 2, 1, 3))

    def rotated(self, x: Any, rotation: tuple[Any, Any]) -> Any:
        ops, half = self.ops, self.sizes.head_size // 2
        cos, sin = rotation
        first, second = ops.variadic_split(x, 3, [half, half]).outputs()
        negated = ops.multiply(second, self.floats([[[[-1]]]]))
        turned = ops.concat([negated, first], -1)
        return ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))

    def cached(self, name: str, x: Any, batch: Any, beam: Any) -> Any:
        """All keys or values so far, (batch, KV heads, tokens, head size)."""
        ops, ov, sizes = self.ops, self.openvino, self.sizes
        info = ov.op.util.VariableInfo()
        info.data_shape = ov.PartialShape([-1, sizes.kv_heads, -1, sizes.head_size])
        info.data_type, info.variable_id = ov.Type.f32, name
        variable = ov.op.util.Variable(info)
        dims = ops.concat([batch, self.ints(sizes.kv_heads, 0, sizes.head_size)], 0)
        past = ops.read_value(ops.broadcast(self.floats(0), dims), variable)
        past = ops.gather(past, beam, self.ints(0))
        present = ops.concat([past, x], -2)
        self.sinks.append(ops.assign(present, variable))
        self.variables.append(variable)
        return present

    def repeated(self, x: Any, batch: Any) -> Any:
        """The KV heads, repeated for the query heads that share them."""
        ops, sizes = self.ops, self.sizes
        group = sizes.heads // sizes.kv_heads
        if group == 1:
            return x
        x = ops.unsqueeze(x, self.ints(2))
        x = ops.broadcast(x, self.ints(1, 1, group, 1, 1), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(x, self.ints(0, sizes.heads, -1, sizes.head_size), True)


def write_ir(weights: DecoderWeights, path: Path, *, all_logits: bool = False) -> Model:
    """Writes the model: `path` (.xml), and a .bin beside it.

    Logits are for the last position, or for all.

    Raises:
        AieError: the source's weights do not fit the format.
    """
    import openvino

    openvino.save_model(_llama(weights, all_logits), path, compress_to_fp16=False)
    return ir_model(weights, path)


def ir_model(weights: DecoderWeights, path: Path) -> Model:
    """A file that `write_ir` has written for these weights."""
    read = int(weights.product_elements() * _BITS / 8)
    return Model(path, _BITS, read, path.with_suffix(".bin").stat().st_size)


def _llama(weights: DecoderWeights, all_logits: bool) -> Any:
    sizes = weights.sizes
    if sizes.family != "llama":
        raise AieError(f"OpenVINO's graph is written for llama only, not for {sizes.family}")
    graph = _Graph(sizes)
    ops = graph.ops
    ids = ops.parameter([-1, -1], np.int64)
    mask = ops.parameter([-1, -1], np.int64)
    positions = ops.parameter([-1, -1], np.int64)
    beam = ops.parameter([-1], np.int32)
    dims = ops.shape_of(ids)
    batch = ops.gather(dims, graph.ints(0), graph.ints(0))
    length = ops.gather(dims, graph.ints(1), graph.ints(0))
    total = ops.gather(ops.shape_of(mask), graph.ints(1), graph.ints(0))
    rotation = _rotation(graph, positions)
    causal = _causal_mask(graph, length, total)

    embedding = weights.embedding()
    head = weights.lm_head()
    table = graph.matrix(head) if embedding is None else graph.floats(embedding)
    x = ops.gather(table, ids, graph.ints(0))
    x = ops.reshape(x, graph.ints(0, 0, sizes.hidden), True)
    for index in range(sizes.layers):
        layer = weights.layer(index)
        h = graph.norm(x, layer.attention_norm)
        q = graph.rotated(graph.heads(graph.linear(h, layer.q), sizes.heads), rotation)
        k = graph.rotated(graph.heads(graph.linear(h, layer.k), sizes.kv_heads), rotation)
        v = graph.heads(graph.linear(h, layer.v), sizes.kv_heads)
        k = graph.repeated(graph.cached(f"past_key_values.{index}.key", k, batch, beam), batch)
        v = graph.repeated(graph.cached(f"past_key_values.{index}.value", v, batch, beam), batch)
        h = ops.scaled_dot_product_attention(q, k, v, causal)
        h = ops.reshape(
            ops.transpose(h, graph.ints(0, 2, 1, 3)),
            graph.ints(0, 0, sizes.heads * sizes.head_size),
            True,
        )
        x = ops.add(x, graph.linear(h, layer.o))
        h = graph.norm(x, layer.ffn_norm)
        gate, up, down = layer.plain_ffn()
        h = ops.multiply(ops.swish(graph.linear(h, gate)), graph.linear(h, up))
        x = ops.add(x, graph.linear(h, down))
    x = graph.norm(x, weights.final_norm())
    if not all_logits:
        x = ops.gather(x, graph.ints(-1), graph.ints(1))
    logits = ops.matmul(x, table if embedding is None else graph.matrix(head), False, True)
    logits.output(0).set_names({"logits"})
    result = ops.result(logits)
    parameters = [ids, mask, positions, beam]
    names = ("input_ids", "attention_mask", "position_ids", "beam_idx")
    for parameter, name in zip(parameters, names, strict=True):
        parameter.set_friendly_name(name)
        parameter.output(0).set_names({name})
    return graph.openvino.Model([result], graph.sinks, parameters, graph.variables, "llama")


def _rotation(graph: _Graph, positions: Any) -> tuple[Any, Any]:
    """cos and sin, (batch, 1, sequence, head size) float32."""
    ops = graph.ops
    frequencies = graph.floats(graph.sizes.inverse_frequencies[None, None])
    angles = ops.multiply(ops.convert(ops.unsqueeze(positions, graph.ints(2)), "f32"), frequencies)
    angles = ops.concat([angles, angles], -1)
    one = graph.ints(1)
    return ops.unsqueeze(ops.cos(angles), one), ops.unsqueeze(ops.sin(angles), one)


def _causal_mask(graph: _Graph, length: Any, total: Any) -> Any:
    """(1, 1, length, total) float32: 0 where a token may look, the lowest float elsewhere."""
    ops, zero, one = graph.ops, graph.ints(0), graph.ints(1)
    scalar = ops.constant(np.int64(0))
    step = ops.constant(np.int64(1))
    keys = ops.range(scalar, ops.squeeze(total, zero), step, "i64")
    start = ops.squeeze(ops.subtract(total, length), zero)
    queries = ops.range(start, ops.squeeze(total, zero), step, "i64")
    later = ops.greater(ops.unsqueeze(keys, zero), ops.unsqueeze(queries, one))
    least = graph.floats(np.finfo(np.float32).min)
    mask = ops.select(later, least, graph.floats(0))
    return ops.unsqueeze(mask, graph.ints(0, 1))


class OpenVinoEngine(StepEngine):
    """An infer request with the state of one sequence."""

    def __init__(self, model: Model, settings: Settings) -> None:
        """Compiles the IR for the CPU with the plugin's defaults for latency."""
        import openvino

        self._openvino = openvino
        compiled = openvino.Core().compile_model(
            model.path,
            "CPU",
            {"INFERENCE_NUM_THREADS": settings.threads, "PERFORMANCE_HINT": "LATENCY"},
        )
        self._request = compiled.create_infer_request()
        self._length = 0
        self._description = {"version": f"openvino {openvino.get_version()}"}
        for name, key in (
            ("threads", "INFERENCE_NUM_THREADS"),
            ("KV", "KV_CACHE_PRECISION"),
            ("activations", "INFERENCE_PRECISION_HINT"),
            ("dynamic quantisation group", "DYNAMIC_QUANTIZATION_GROUP_SIZE"),
        ):
            self._description[name] = _plain(compiled.get_property(key))

    def describe(self) -> dict[str, str]:
        """See `Engine`."""
        return self._description

    def reset(self) -> None:
        """See `StepEngine`."""
        self._request.reset_state()
        self._length = 0

    def forward(self, tokens: Sequence[int]) -> int:
        """See `StepEngine`."""
        return int(np.argmax(self._infer(np.asarray(tokens, np.int64)[None])[0, -1]))

    def batch_at(self, length: int, sequences: int, tokens: int, count: int) -> float:
        """See `Batching`; the sequences grow with each call, because its states cannot go back."""
        self.reset()
        self._infer(np.ones((sequences, length), np.int64))
        start = 0.0
        for call in range(count + 1):
            if call == 1:
                start = time.perf_counter()
            self._infer(different_tokens(sequences, tokens))
        return time.perf_counter() - start

    def _infer(self, tokens: npt.NDArray[np.int64]) -> Any:
        """Logits (sequences, rows, vocabulary) of the next tokens (sequences, count)."""
        sequences, count = tokens.shape
        total = self._length + count
        positions = np.arange(self._length, total, dtype=np.int64)
        outputs = self._request.infer(
            {
                "input_ids": tokens,
                "attention_mask": np.ones((sequences, total), np.int64),
                "position_ids": np.tile(positions, (sequences, 1)),
                "beam_idx": np.arange(sequences, dtype=np.int32),
            },
            share_inputs=True,
            share_outputs=True,
        )
        self._length = total
        return outputs["logits"]


class OpenVinoGenAiEngine:
    """An LLMPipeline with paged attention, which is its default on CPUs."""

    def __init__(self, model: Model, settings: Settings) -> None:
        """Opens the folder of the IR, which has no tokenizer."""
        import openvino
        import openvino_genai

        self._openvino, self._genai = openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        # Each prompt in one pass, and no prompt from a cache.
        scheduler.max_num_batched_tokens = settings.capacity
        scheduler.enable_prefix_caching = False
        scheduler.num_kv_blocks = -(-settings.capacity // _PAGE_TOKENS) + 1
        folder = str(model.path.parent)
        self._pipeline = openvino_genai.LLMPipeline(
            folder,
            openvino_genai.Tokenizer(folder),
            "CPU",
            scheduler_config=scheduler,
            INFERENCE_NUM_THREADS=settings.threads,
            PERFORMANCE_HINT="LATENCY",
        )
        self._config = openvino_genai.GenerationConfig()
        self._config.do_sample, self._config.ignore_eos = False, True
        self._config.eos_token_id, self._config.stop_token_ids = 0, set()
        self._description = {
            "version": f"openvino-genai {metadata.version('openvino-genai')}",
            "threads": str(settings.threads),
            "attention": "paged, prefix caching off",
        }
        for name, key in (
            ("KV", "KV_CACHE_PRECISION"),
            ("activations", "INFERENCE_PRECISION_HINT"),
        ):
            self._description[name] = _plain(openvino.Core().get_property("CPU", key))

    def describe(self) -> dict[str, str]:
        """See `Engine`."""
        return self._description

    def run(self, prompt: Sequence[int], new_tokens: int) -> Run:
        """See `Engine`."""
        ids = np.asarray(prompt, np.int64)[None]
        tensors = (self._openvino.Tensor(array) for array in (ids, np.ones_like(ids)))
        self._config.max_new_tokens = new_tokens + 1
        start = time.perf_counter()
        result = self._pipeline.generate(self._genai.TokenizedInputs(*tensors), self._config)
        seconds = time.perf_counter() - start
        prefill = result.perf_metrics.get_ttft().mean / 1e3
        return Run([int(token) for token in result.tokens[0]], prefill, seconds - prefill)


def _plain(value: object) -> str:
    """A property's value without the decoration of its type, such as <Type: 'float16'>."""
    text = str(value)
    return text.split("'")[1] if "'" in text else text
