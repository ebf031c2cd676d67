"""aie.FlowAttention, compared with a numpy reference and ONNX Runtime's own GroupQueryAttention.

Calls of every kind are drawn at random: types of activations and caches, heads, lengths, masks,
rotations. What follows them are the sizes at which kernels do something else, and bits that must be
equal.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_calls import (
    Array,
    Inputs,
    attributes,
    check,
    compare,
    flow_attention,
    model_of,
    multiplies_in_bfloat16,
    of,
    random_inputs,
    reference,
)
from op_models import BFLOAT16, FLOAT16, FLOAT32, ORT_VERSION, one_op_model, open_session, run
from reference import AttentionAttributes, group_query_attention

from ort_aie_ep import _native

TYPES = (FLOAT32, FLOAT16, BFLOAT16)
# Tokens and those before them: tokens, drafts, prompts and later parts, around the sizes of a block
# of 24 rows, a tile of 240 rows, a chunk of 256 keys and a split of 512.
LENGTHS = (
    (1, 0), (1, 20), (1, 40), (1, 70), (1, 600), (1, 1500), (2, 700), (4, 12), (5, 0), (5, 30),
    (7, 20), (17, 1100), (18, 0), (20, 30), (20, 300), (33, 0), (40, 90), (64, 449), (100, 1),
    (130, 255), (300, 0),
)  # fmt: skip
BY_INDEX: Inputs = {"seqlens_k": None, "total_sequence_length": None}


@dataclass
class Draw:
    """A call that its number decides."""

    number: int
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([41, self.number])

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def maybe(self, *choices: Any, plain: Any) -> Any:
        """Mostly `plain`, so that few things come together."""
        return plain if self.rng.random() < 0.65 else self.one(*choices)

    def heads(self, rotary: int) -> tuple[int, int, int]:
        kv_heads = self.one(1, 2, 2, 3)
        dims = 16, 32, 32, 64, 80, 96, 128, 256  # ONNX Runtime rotates no others
        dim = self.one(*dims, *(() if rotary else (8, 24, 40, 72)))
        return kv_heads * self.one(1, 2, 2, 3, 4, 7, 8), kv_heads, dim

    def call(self) -> tuple[AttentionAttributes, Inputs, bool]:
        """Attributes, inputs, and whether past and present share a buffer."""
        sequence, past = self.one(*LENGTHS)
        total, batch = past + sequence, self.one(1, 1, 2, 3)
        dtype = self.one(*TYPES)
        bits = self.maybe(8, 4, plain=0)
        rotary = self.one(0, 1)
        heads, kv_heads, dim = self.heads(rotary)
        axes = self.maybe(1, 3, plain=0) if rotary else 0
        window = self.maybe(1, 2, 7, 31, 63, 64, 65, 70, 255, 256, 257, 600, plain=-1)
        by_index = self.rng.random() < 0.3
        windowed = int(window in (7, 31, 70) and not by_index and self.one(True, True, False))
        kinds = [self.one("PER_TENSOR", "PER_CHANNEL") if bits else "NONE" for _ in range(2)]
        width = self.one(dim // 2, dim // 2, 8)
        a = attributes(
            heads, kv_heads, do_rotary=rotary, rotary_interleaved=self.one(0, 1) * rotary,
            scale=self.maybe(0.01, 0.3, plain=0.0), softcap=self.maybe(0.5, 20.0, 50.0, plain=0.0),
            smooth_softmax=self.maybe(0, 1, plain=-1), local_window_size=window,
            sliding_window_cache=windowed, causal=self.maybe(0, plain=1) if window < 0 else 1,
            float32_products=self.maybe(1, plain=0), kv_cache_bit_width=bits,
            k_quant_type=kinds[0], v_quant_type=kinds[1], position_axes=axes,
            mrope_height=width // 3 * (axes == 3), mrope_width=width // 4 * (axes == 3),
            mrope_interleaved=self.one(0, 1) * (axes == 3),
            norm_after_rotary=self.maybe(1, plain=0), qk_norm_epsilon=1e-3,
        )  # fmt: skip
        borrowed = not (by_index or windowed) and self.rng.random() < 0.1
        least = sequence if past or borrowed else 1
        lengths = [total, *self.rng.integers(least, total + 1, batch - 1)]
        if by_index:
            lengths = [total] * batch
        capacity = 0 if by_index else total + self.one(0, 0, 13)
        if windowed:
            capacity = window + self.one(0, 3, 30)
        no_past = past == 0 and not (windowed or borrowed) and self.rng.random() < 0.3
        inputs = random_inputs(
            a, sequence, lengths=tuple(map(int, lengths)), capacity=capacity, dim=dim, dtype=dtype,
            cache_dtype=None if bits or no_past else self.maybe(*TYPES, plain=dtype),
            packed=self.one(True, False), rotary_width=width, max_position=total + 9,
            with_past=not no_past, borrowed=borrowed, seed=self.number,
        )  # fmt: skip
        if by_index:
            self.without_lengths(a, inputs, past, dim)
        self.add_positions(a, inputs, batch, sequence, past)
        self.add_masks(a, inputs, batch, by_index=by_index)
        for name in self.maybe("qk", *(() if bits else ("v", "qkv")), plain=""):
            inputs[f"{name}_norm_weight"] = self.floats(dim).astype(dtype)
        shared = not (no_past or by_index) and self.one(True, False)
        return a, inputs, bool(shared)

    def floats(self, *shape: int) -> Array:
        return 1 + 0.5 * self.rng.standard_normal(shape)

    def without_lengths(self, a: AttentionAttributes, inputs: Inputs, past: int, dim: int) -> None:
        """The past is exactly the tokens before; without a rotation, keys may be of another
        sequence."""
        inputs |= BY_INDEX
        for name in ("past_key", "past_value") if inputs["past_key"] is not None else ():
            inputs[name] = np.ascontiguousarray(of(inputs, name)[:, :, :past])
        if inputs["key"] is None or a.do_rotary or self.rng.random() < 0.5:
            return
        batch, keys = len(of(inputs, "query")), self.one(1, 7, 50, 300)
        for name in ("key", "value"):
            rows = self.rng.standard_normal((batch, keys, a.kv_num_heads * dim))
            inputs[name] = rows.astype(of(inputs, "query").dtype)

    def add_positions(
        self, a: AttentionAttributes, inputs: Inputs, batch: int, sequence: int, past: int
    ) -> None:
        most = past + sequence + 9
        if a.position_axes:
            shape = (3, batch, sequence) if a.position_axes == 3 else (batch, sequence)
            inputs["position_ids"] = self.rng.integers(0, most, shape)
        elif a.do_rotary and batch == 1 and past and self.rng.random() < 0.3:
            inputs["position_ids"] = self.rng.integers(0, most, (1, sequence))

    def add_masks(
        self, a: AttentionAttributes, inputs: Inputs, batch: int, *, by_index: bool
    ) -> None:
        query = of(inputs, "query")
        total = group_total(inputs)
        if self.rng.random() < 0.3:
            rows = self.one(1, query.shape[1]) if by_index else query.shape[1]
            bias = self.floats(self.one(1, batch), self.one(1, a.num_heads), rows, total)
            bias[..., : total // self.one(2, 3)] += self.maybe(-np.inf, plain=0)
            inputs["attention_bias"] = bias.astype(query.dtype)
        if self.rng.random() < 0.3:
            padding = self.rng.integers(0, total + 1, (2, batch, 1))
            place = np.arange(total)
            mask = {
                "left": place >= padding[0], "right": place < padding[0],
                "both": (place >= padding.min(0)) & (place < padding.max(0)),
                "holes": self.rng.random((batch, total)) < self.one(0.05, 0.5, 0.95),
            }[self.one("left", "right", "both", "holes")]  # fmt: skip
            inputs["attention_mask"] = 7 * mask.astype(np.int64)  # not only 1 is visible
        if self.rng.random() < 0.2:
            sinks = self.rng.uniform(-5, 12, a.num_heads)
            inputs["head_sink"] = sinks.astype(query.dtype)


def group_total(inputs: Inputs) -> int:
    total = inputs["total_sequence_length"]
    if total is not None:
        return int(total)
    past, key = inputs["past_key"], inputs["key"]
    new = of(inputs, "query") if key is None else key
    return int(new.shape[1] + (0 if past is None else past.shape[2]))


@pytest.mark.parametrize("number", range(120))
def test_any_calls(number: int) -> None:
    for i in range(3):
        a, inputs, shared = Draw(3 * number + i).call()
        actual = check(a, inputs, shared=shared)
        if a.smooth_softmax != 1 and inputs["head_sink"] is None:
            expected = reference(a, inputs)
            for b, rows in enumerate(expected.output_rows):  # queries that see no key
                zero = expected.output[b, :rows] == 0
                np.testing.assert_array_equal(of(actual, "output")[b, :rows][zero], 0)


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_one_token_after_a_long_context(dtype: np.dtype[Any]) -> None:
    """Long enough that keys are split among tasks, whose results are merged."""
    a = attributes(do_rotary=1)
    for past in (510, 511, 512, 640, 1023, 1024, 1600, 2200):
        check(a, random_inputs(a, 1, lengths=(past + 1,), capacity=2300, dtype=dtype))


@pytest.mark.parametrize("sequence", [1, 2, 5, 17])
@pytest.mark.parametrize(
    "others",
    [{"num_heads": 4, "kv_num_heads": 1}, {"num_heads": 32, "kv_num_heads": 1}, {"causal": 0},
     {"local_window_size": 1030}, {"local_window_size": 600}],
)  # fmt: skip
def test_a_few_tokens_after_a_long_context(sequence: int, others: dict[str, Any]) -> None:
    """With 32 heads, 17 positions are three tiles."""
    a = attributes(do_rotary=1, **others)
    for dtype in (FLOAT32, FLOAT16):
        inputs = random_inputs(a, sequence, lengths=(1700 + sequence, 900), capacity=1800,
                               dtype=dtype)  # fmt: skip
        check(a, inputs)


def test_a_sink_joins_merged_splits_once() -> None:
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(1700,))
    # About as heavy as all keys together, so that counting it twice would show.
    inputs["head_sink"] = np.full(a.num_heads, 9.0, np.float32)
    check(a, inputs)


def test_a_long_context_whose_bias_masks_whole_splits() -> None:
    a = attributes()
    inputs = random_inputs(a, 1, lengths=(1600,))
    bias = np.full((1, 1, 1, 1600), -np.inf, np.float32)
    bias[..., [3, 1590]] = 0
    check(a, inputs | {"attention_bias": bias})


@pytest.mark.parametrize("dtype", TYPES)
def test_a_bias_of_the_lowest_number_hides_keys(dtype: np.dtype[Any]) -> None:
    a = attributes()
    for sequence, past in ((1, 140), (90, 0)):
        inputs = random_inputs(a, sequence, lengths=(past + sequence,), dtype=dtype)
        mask = np.random.default_rng(8).random((1, 1, sequence, past + sequence)) < 0.5
        mask[..., :80] = True
        mask[..., 0] = False  # each query keeps one
        bias = np.where(mask, float(ml_dtypes.finfo(dtype).min), 0).astype(dtype)
        check(a, inputs | {"attention_bias": bias})


@pytest.mark.parametrize("cache", TYPES)
def test_windows_at_the_edges_of_chunks(cache: np.dtype[Any]) -> None:
    for window in (1, 2, 31, 33, 63, 64, 65, 255, 256, 257, 1000):
        a = attributes(local_window_size=window)
        for sequence, past in ((1, 300), (300, 0), (40, 400)):
            inputs = random_inputs(a, sequence, lengths=(past + sequence,), capacity=480,
                                   cache_dtype=cache)  # fmt: skip
            check(a, inputs)


# Runs begin and end before, at and after the edges of chunks.
@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 1), (0, 255), (0, 256), (0, 257), (1, 255), (1, 256), (255, 1), (255, 33), (255, 257),
     (256, 31), (256, 256), (257, 255), (257, 256), (511, 1), (511, 32), (512, 1), (512, 257)],
)  # fmt: skip
def test_visible_runs_at_the_edges_of_chunks(first: int, count: int) -> None:
    a, total = attributes(), 800
    mask = np.zeros((1, total), np.int64)
    mask[:, first : first + count] = 1
    for sequence in (1, 40):
        inputs = by_index(a, sequence, total - sequence, batch=1)
        for shown in (mask, 1 - mask):  # a run, and a hole
            given = inputs | {"attention_mask": shown}
            compare(a, given, flow_attention(a, given), reference(a, given))


def by_index(
    a: AttentionAttributes, sequence: int, past: int, *, batch: int = 3, **others: Any
) -> Inputs:
    """A call whose tokens follow a past of the same length in all batch rows."""
    inputs = random_inputs(a, sequence, lengths=(past + sequence,) * batch, packed=False, **others)
    for name in ("past_key", "past_value"):
        inputs[name] = np.ascontiguousarray(of(inputs, name)[:, :, :past])
    return inputs | BY_INDEX


@pytest.mark.parametrize("with_past", [True, False])
def test_a_placeholder_leaves_an_input_out(with_past: bool) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, 9, lengths=(9,), capacity=12, with_past=with_past)
    inputs["head_sink"] = np.zeros(4, np.float32)
    given = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "format": _native.FORMAT}
    outputs = {name: FLOAT32 for name in ("output", "present_key", "present_value")}
    model = one_op_model("FlowAttention", inputs, outputs, given, fill=True)
    compare(a, inputs, dict(run(open_session(model), inputs)), group_query_attention(a, inputs))


# In a first prompt GroupQueryAttention reads the first position alone.
@pytest.mark.parametrize(
    ("sequence", "lengths", "ids"),
    [(4, (4,), [[30, 3, 49, 0]]), (4, (14,), [[30, 3, 49, 0]]), (1, (8, 3, 5), [[30], [3], [49]])],
)
def test_positions(sequence: int, lengths: tuple[int, ...], ids: list[list[int]]) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, sequence, lengths=lengths, max_position=50)
    check(a, inputs | {"position_ids": np.array(ids)})


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("sequence", "past"), [(4, 0), (1, 10), (4, 10)])
def test_without_lengths_every_position_counts_and_the_table_may_be_short(
    rows: int, sequence: int, past: int
) -> None:
    a = attributes(do_rotary=1)
    inputs = by_index(a, sequence, past, max_position=4)
    ids = np.random.default_rng(14).integers(0, 4, (rows, sequence))
    check(a, inputs | {"position_ids": ids})


# --- bits -----------------------------------------------------------------------------------------


def output(a: AttentionAttributes, inputs: Inputs) -> Array:
    return of(flow_attention(a, inputs), "output")


def rotations(theta: float, magnitude: float) -> tuple[Inputs, Inputs]:
    """Frequencies, and tables of 50 positions that are made of them."""
    frequencies = (theta ** (-np.arange(12) / 12)).astype(np.float32)
    angles = np.outer(np.arange(50, dtype=np.float32), frequencies).astype(np.float64)
    cos, sin = (f(angles).astype(np.float32) * np.float32(magnitude) for f in (np.cos, np.sin))
    computed: Inputs = {"cos_cache": None, "sin_cache": None, "rotary_frequencies": frequencies}
    return computed, {"cos_cache": cos, "sin_cache": sin}


@pytest.mark.parametrize("magnitude", [1.0, 1.19])
@pytest.mark.parametrize(
    ("sequence", "lengths", "ids"),
    [(4, (4,), None), (1, (40, 9), None), (3, (40,), None), (2, (9,), [[30, 3]])],
)
def test_frequencies_have_the_bits_of_their_tables(
    sequence: int, lengths: tuple[int, ...], ids: list[list[int]] | None, magnitude: float
) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, sequence, lengths=lengths)
    inputs["position_ids"] = None if ids is None else np.array(ids)
    frequencies, tables = rotations(1e4, magnitude)
    expected = flow_attention(a, inputs | tables)
    computing = replace(a, rotary_positions=50, rotary_magnitude=magnitude)
    actual = flow_attention(computing, inputs | frequencies)
    for name, array in expected.items():
        np.testing.assert_array_equal(of(actual, name), array)


def test_threads_reach_positions_of_one_table_together() -> None:
    a = attributes(do_rotary=1)
    computing = partial(flow_attention, replace(a, rotary_positions=50))
    calls = [random_inputs(a, 1, lengths=(n,), capacity=50) for n in (50, 49, 33, 41)]
    for theta in range(2, 22):
        frequencies, tables = rotations(theta, 1.0)
        with ThreadPoolExecutor(len(calls)) as threads:
            found = list(threads.map(computing, [call | frequencies for call in calls]))
        for call, actual in zip(calls, found, strict=True):
            np.testing.assert_array_equal(of(actual, "output"), output(a, call | tables))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
@pytest.mark.parametrize(
    "others",
    [
        {"num_heads": 4, "kv_num_heads": 1},
        {"num_heads": 6, "kv_num_heads": 2},
        {"num_heads": 32, "kv_num_heads": 1},
        {"local_window_size": 1030},
        {"kv_cache_bit_width": 8, "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"},
    ],
)
def test_drafted_tokens_have_the_bits_of_single_ones(
    dtype: np.dtype[Any], others: dict[str, Any]
) -> None:
    """Across a boundary of chunks (1,024) and of splits; the shorter row is one of a batch."""
    a, count, lengths = attributes(do_rotary=1, **others), 6, (1027, 260)
    inputs = random_inputs(a, count, lengths=lengths, capacity=1100, dtype=dtype)
    together = output(a, inputs)
    past = {name: inputs[name] for name in ("past_key", "past_value")}
    for t in range(count):
        ends = np.array(lengths) - count + t + 1
        now = inputs | past
        now["query"] = np.ascontiguousarray(of(inputs, "query")[:, t : t + 1])
        now["seqlens_k"] = (ends - 1).astype(np.int32)
        now["total_sequence_length"] = np.array(ends.max(), np.int32)
        result = flow_attention(a, now)
        np.testing.assert_array_equal(together[:, t], of(result, "output")[:, 0])
        past = {"past_key": result["present_key"], "past_value": result["present_value"]}


@pytest.mark.parametrize("bits", [0, 8, 4])
def test_any_number_of_threads_gives_the_same_bits(bits: int) -> None:
    kind = "PER_CHANNEL" if bits else "NONE"
    a = attributes(do_rotary=1, kv_cache_bit_width=bits, k_quant_type=kind, v_quant_type=kind)
    for sequence, past in ((1, 1400), (150, 30), (500, 0)):
        inputs = by_index(a, sequence, past)
        place = np.arange(past + sequence)
        inputs["attention_mask"] = (place >= np.array([[0], [130], [490]])).astype(np.int64)
        model = model_of(a, inputs)
        one, three = (run(open_session(model, threads=n), inputs) for n in (1, 3))
        for name in one:
            np.testing.assert_array_equal(one[name], three[name])


@pytest.mark.parametrize("window", [-1, 70])
@pytest.mark.skipif(ORT_VERSION < (1, 24), reason="ops read session entries from 1.24 on")
def test_masks_of_prompts_in_pieces(window: int) -> None:
    a = attributes(do_rotary=1, local_window_size=window)
    for dtype in TYPES:
        inputs = by_index(a, 500, 30, dtype=dtype)
        mask = (np.arange(530) >= np.array([[0], [130], [490]])).astype(np.int64)
        mask[0] = np.random.default_rng(13).random(530) < 0.5
        inputs["attention_mask"] = mask
        session = open_session(model_of(a, inputs), config={"ort_aie.prompt_chunk": "128"})
        compare(a, inputs, dict(run(session, inputs)), reference(a, inputs))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_mask_that_hides_nothing_changes_no_bit(dtype: np.dtype[Any]) -> None:
    a = attributes(do_rotary=1)
    for sequence, past in ((1, 1500), (300, 0)):
        inputs = by_index(a, sequence, past, dtype=dtype)
        ones = {"attention_mask": np.ones((3, past + sequence), np.int64)}
        np.testing.assert_array_equal(output(a, inputs | ones), output(a, inputs))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("padding", [1, 100, 256, 300])
def test_a_padded_prompt_has_the_bits_of_the_prompt_alone(
    dtype: np.dtype[Any], padding: int
) -> None:
    """Chunks start at the first visible key."""
    a, tokens = attributes(), 70
    padded = by_index(a, padding + tokens, 0, batch=1, dtype=dtype)
    alone = {name: np.ascontiguousarray(of(padded, name)[:, padding:])
             for name in ("query", "key", "value")}  # fmt: skip
    mask = (np.arange(padding + tokens) >= padding).astype(np.int64)[None]
    y = output(a, padded | {"attention_mask": mask})
    np.testing.assert_array_equal(y[:, padding:], output(a, padded | alone))
    np.testing.assert_array_equal(y[:, :padding], 0)


def test_the_three_positions_of_text_are_one() -> None:
    inputs = random_inputs(attributes(do_rotary=1), 7, lengths=(7,), max_position=50)
    ids = np.random.default_rng(4).integers(0, 50, (1, 7))
    three = attributes(position_axes=3, do_rotary=1, mrope_height=5, mrope_width=4)
    expected = flow_attention(attributes(do_rotary=1, position_axes=1),
                              inputs | {"position_ids": ids})  # fmt: skip
    actual = flow_attention(three, inputs | {"position_ids": np.stack([ids] * 3)})
    for name, y in expected.items():
        np.testing.assert_array_equal(actual[name], y, err_msg=name)


@pytest.mark.parametrize("cache", [FLOAT16, BFLOAT16])
def test_the_mean_of_equal_values_is_the_value(cache: np.dtype[Any]) -> None:
    # Sums add the rounded numerators, so weights add up to one. What remains is one float32
    # rounding per key in the sum and in the products, and two in the quotient.
    a = attributes()
    inputs = random_inputs(a, 300, lengths=(300,), capacity=400, cache_dtype=cache, packed=False)
    of(inputs, "value")[:] = 1.5
    np.testing.assert_allclose(output(a, inputs), 1.5, rtol=(2 * 300 + 2) * 2.0**-24)


def test_a_float32_cache_and_single_tokens_keep_float32() -> None:
    a = attributes()
    for sequence, cache in ((300, FLOAT32), (1, FLOAT16)):
        inputs = random_inputs(a, sequence, lengths=(sequence + 20,), cache_dtype=cache)
        assert not multiplies_in_bfloat16(a, inputs)
        check(a, inputs)
