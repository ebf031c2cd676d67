"""OpenVINO GenAI on an IR of the decoder's graph, with the source's codes as u4 weights.

The graph is the one that OpenVINO's exporters make for a Llama: compressed weights as Constant,
Convert, Subtract, Multiply, Reshape; a stateful cache reordered by beam_idx before its Concat;
attention as one operator; logits of only the last position. The CPU plugin fuses each of these
patterns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from bench_peers.engines import Engine, Model, Run, Settings, Source

if TYPE_CHECKING:
    from bench_peers.weights import DecoderWeights, Floats, Int4Matrix

# Tokens of a KV block in the CPU plugin's paged attention.
_PAGE_TOKENS = 32
# What the page says of its settings, and OpenVINO's names of them.
_HINTS = {"KV": "KV_CACHE_PRECISION", "activations": "INFERENCE_PRECISION_HINT"}


def ir_model(source: Source) -> Model:
    """Writes the model."""
    import openvino

    # GenAI opens a folder and expects this name.
    weights, path = source.weights, source.scratch / "openvino/openvino_model.xml"
    path.parent.mkdir()
    openvino.save_model(_Decoder(weights).model(), path, compress_to_fp16=False)
    bits = 4 + 16 / weights.block  # scales are float16
    read = int(weights.product_elements() * bits / 8)
    return Model(path, bits, read, path.with_suffix(".bin").stat().st_size)


class _Decoder:
    """The graph; values are OpenVINO's, untyped, (batch, sequence, width)."""

    def __init__(self, weights: DecoderWeights) -> None:
        import openvino
        from openvino import opset13

        self.weights, self.shape = weights, weights.shape
        self.openvino, self.ops = openvino, opset13
        self.sinks: list[Any] = []
        self.variables: list[Any] = []
        ints = [opset13.parameter([-1, -1], np.int64) for _ in range(3)]
        names = ("input_ids", "attention_mask", "position_ids", "beam_idx")
        inputs = (*ints, opset13.parameter([-1], np.int32))
        self.inputs: dict[str, Any] = dict(zip(names, inputs, strict=True))
        for name, parameter in self.inputs.items():
            parameter.set_friendly_name(name)
            parameter.output(0).set_names({name})

    def model(self) -> Any:
        """The whole graph."""
        ops, shape, ids = self.ops, self.shape, self.inputs["input_ids"]
        rotation, causal = self.rotation(), self.causal_mask()
        embedding, head = self.weights.embedding(), self.weights.lm_head()
        table = self.matrix(head) if embedding is None else ops.constant(embedding)
        x = ops.reshape(ops.gather(table, ids, 0), [0, 0, shape.hidden], True)
        for index in range(shape.layers):
            layer, past = self.weights.layer(index), f"past_key_values.{index}"
            h = self.norm(x, layer.attention_norm)
            q = self.heads(self.linear(h, layer.q), shape.heads)
            k = self.heads(self.linear(h, layer.k), shape.kv_heads)
            if layer.head_norms is not None:
                q, k = map(self.norm, (q, k), layer.head_norms)
            q, k = self.rotated(q, rotation), self.rotated(k, rotation)
            v = self.heads(self.linear(h, layer.v), shape.kv_heads)
            k = self.repeated(self.cached(f"{past}.key", k))
            v = self.repeated(self.cached(f"{past}.value", v))
            h = ops.scaled_dot_product_attention(q, k, v, causal)
            h = ops.reshape(ops.transpose(h, [0, 2, 1, 3]), [0, 0, shape.queries], True)
            x = ops.add(x, self.linear(h, layer.o))
            h = self.norm(x, layer.ffn_norm)
            h = ops.multiply(ops.swish(self.linear(h, layer.gate)), self.linear(h, layer.up))
            x = ops.add(x, self.linear(h, layer.down))
        x = ops.gather(self.norm(x, self.weights.final_norm()), [-1], 1)
        if embedding is not None:
            table = self.matrix(head)
        logits = ops.matmul(x, table, False, True)
        logits.output(0).set_names({"logits"})
        inputs, result = list(self.inputs.values()), ops.result(logits)
        return self.openvino.Model([result], self.sinks, inputs, self.variables, "decoder")

    def size(self, name: str, axis: int) -> Any:
        """(1,): a dimension of an input."""
        return self.ops.gather(self.ops.shape_of(self.inputs[name]), [axis], 0)

    def matrix(self, matrix: Int4Matrix) -> Any:
        """(N, K) float32, which the plugin keeps compressed."""
        ops, ov = self.ops, self.openvino
        n, k = matrix.shape
        blocks = matrix.scales.shape[1]
        dims = ov.Shape([n, blocks, k // blocks])
        codes = ov.Tensor(np.ascontiguousarray(matrix.codes), dims, ov.Type.u4)
        middle = ov.Tensor(np.array([0x08], np.uint8), ov.Shape([1, 1, 1]), ov.Type.u4)
        values, zero = (ops.convert(ov.op.Constant(tensor), "f16") for tensor in (codes, middle))
        scales = ops.constant(matrix.scales.astype(np.float16)[:, :, None])
        values = ops.multiply(ops.subtract(values, zero), scales)
        return ops.convert(ops.reshape(values, [n, k], False), "f32")

    def linear(self, x: Any, matrix: Int4Matrix) -> Any:
        return self.ops.matmul(x, self.matrix(matrix), False, True)

    def norm(self, x: Any, weight: Floats) -> Any:
        ops = self.ops
        one, two, epsilon = (np.full((1, 1, 1), v, np.float32) for v in (1, 2, self.shape.epsilon))
        root = ops.sqrt(ops.add(ops.reduce_mean(ops.power(x, two), [-1], True), epsilon))
        return ops.multiply(ops.multiply(x, ops.divide(one, root)), weight[None, None])

    def heads(self, x: Any, count: int) -> Any:
        """(batch, count, sequence, head size)."""
        x = self.ops.reshape(x, [0, 0, count, self.shape.head_dim], True)
        return self.ops.transpose(x, [0, 2, 1, 3])

    def rotated(self, x: Any, rotation: tuple[Any, Any]) -> Any:
        ops, half = self.ops, self.shape.head_dim // 2
        cos, sin = rotation
        first, second = ops.variadic_split(x, 3, [half, half]).outputs()
        negated = ops.multiply(second, np.full((1, 1, 1, 1), -1, np.float32))
        turned = ops.concat([negated, first], -1)
        return ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))

    def cached(self, name: str, x: Any) -> Any:
        """All keys or values so far, (batch, KV heads, tokens, head size)."""
        ops, ov, shape = self.ops, self.openvino, self.shape
        info = ov.op.util.VariableInfo()
        info.data_shape = ov.PartialShape([-1, shape.kv_heads, -1, shape.head_dim])
        info.data_type, info.variable_id = ov.Type.f32, name
        variable = ov.op.util.Variable(info)
        empty = ops.concat([self.size("input_ids", 0), [shape.kv_heads, 0, shape.head_dim]], 0)
        past = ops.read_value(ops.broadcast(np.float32(0), empty), variable)
        present = ops.concat([ops.gather(past, self.inputs["beam_idx"], 0), x], -2)
        self.sinks.append(ops.assign(present, variable))
        self.variables.append(variable)
        return present

    def repeated(self, x: Any) -> Any:
        """The KV heads, repeated for the query heads that share them."""
        ops, shape = self.ops, self.shape
        group = shape.heads // shape.kv_heads
        if group == 1:
            return x
        dims = [1, 1, group, 1, 1]
        x = ops.broadcast(ops.unsqueeze(x, [2]), dims, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(x, [0, shape.heads, -1, shape.head_dim], True)

    def rotation(self) -> tuple[Any, Any]:
        """cos and sin, (batch, 1, sequence, head size) float32."""
        ops = self.ops
        positions = ops.convert(ops.unsqueeze(self.inputs["position_ids"], [2]), "f32")
        angles = ops.multiply(positions, self.weights.frequencies[None, None].astype(np.float32))
        angles = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(angles), [1]), ops.unsqueeze(ops.sin(angles), [1])

    def causal_mask(self) -> Any:
        """(1, 1, length, total) float32: 0 where a token may look, the lowest float elsewhere."""
        ops, total = self.ops, self.size("attention_mask", 1)
        first, step = (ops.constant(np.int64(i)) for i in (0, 1))
        before = ops.subtract(total, self.size("input_ids", 1))
        end, start = (ops.squeeze(x, [0]) for x in (total, before))
        keys = ops.unsqueeze(ops.range(first, end, step, "i64"), [0])
        queries = ops.unsqueeze(ops.range(start, end, step, "i64"), [1])
        least = np.finfo(np.float32).min
        mask = ops.select(ops.greater(keys, queries), least, np.float32(0))
        return ops.unsqueeze(mask, [0, 1])


class OpenVinoEngine(Engine):
    """An LLMPipeline with paged attention, which is its default on CPUs."""

    def __init__(self, model: Model, settings: Settings) -> None:
        """Opens the folder of the IR, which has no tokenizer."""
        import openvino
        import openvino_genai

        self._openvino, self._genai = openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()  # each prompt in one pass, none from a cache
        scheduler.max_num_batched_tokens = settings.capacity
        scheduler.enable_prefix_caching = False
        scheduler.num_kv_blocks = -(-settings.capacity // _PAGE_TOKENS) + 1
        folder = str(model.path.parent)
        self._pipeline = openvino_genai.LLMPipeline(
            folder, openvino_genai.Tokenizer(folder), "CPU", scheduler_config=scheduler,
            INFERENCE_NUM_THREADS=settings.threads, PERFORMANCE_HINT="LATENCY",
        )  # fmt: skip
        self._config = openvino_genai.GenerationConfig()
        self._config.do_sample, self._config.ignore_eos = False, True
        self._config.eos_token_id, self._config.stop_token_ids = 0, set()
        core = openvino.Core()
        self.description = {
            "version": f"openvino-genai {metadata.version('openvino-genai')}",
            "threads": str(settings.threads),
            "attention": "paged, prefix caching off",
        } | _properties(lambda key: core.get_property("CPU", key), _HINTS)

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


def _properties(get: Callable[[str], object], keys: dict[str, str]) -> dict[str, str]:
    """Values by name, without the decoration of their type, such as <Type: 'float16'>."""
    texts = {name: str(get(key)) for name, key in keys.items()}
    return {name: text.split("'")[1] if "'" in text else text for name, text in texts.items()}
