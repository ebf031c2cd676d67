"""optimum's exports, as they are and quantised, compiled and compared with ONNX Runtime's CPU
EP."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from expanded import expanded
from optimum_models import (
    FAMILIES,
    quantise,
    with_accuracy_level,
    with_bfloat16_scales,
    write_export,
)
from text_host import Host

import ort_aie_ep
from ort_aie_ep.explain.explain import CPU_EP, explain

Array = npt.NDArray[np.float32]

NEW_TOKENS = 12


@dataclass(frozen=True)
class Case:
    """An export, its compiled folder, and how far a logit may be off.

    `exact` is the export with projections computed in float32.
    """

    name: str
    exact: Path
    compiled: Path
    tolerance: float

    @property
    def vocab(self) -> int:
        return json.loads((self.exact / "config.json").read_text())["vocab_size"]


LENGTHS = (23, 1, 1, 9, 30, 1)  # a prompt, tokens, later turns on a filled cache


def teacher_forced(folder: Path, vocab: int, ours: bool, numerics: str = "bf16") -> Array:
    """Logits (65, vocab) of seeded tokens, fed in pieces of LENGTHS."""
    host = Host(folder / "model.onnx", library=ours, numerics=numerics)
    rng = np.random.default_rng(7)
    return np.concatenate([host(rng.integers(3, vocab, (1, length)))[0] for length in LENGTHS])


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """pytest leaves a family's fixtures and returns to them later."""
    if not folder.exists():
        make(folder)
    return folder


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


# With and without biases, norms of heads, windows and Gelu, by both of PyTorch's exporters.
SOME = ("llama_dynamo", "gemma3", "phi")
some_families = pytest.mark.parametrize("export", SOME, indirect=True)


@pytest.fixture(
    scope="module",
    params=[pytest.param(f, marks=[] if f in SOME else pytest.mark.in_turn) for f in FAMILIES],
)
def export(request: pytest.FixtureRequest, families: Path) -> Path:
    return once(families / request.param / "export", partial(write_export, request.param))


@pytest.fixture(scope="module")
def compiled(export: Path) -> Path:
    return once(export.with_name("float32"), partial(ort_aie_ep.compile, export))


@pytest.fixture(scope="module")
def quantised(export: Path) -> Path:
    return once(export.with_name("quantised"), partial(quantise, export))


@pytest.fixture(scope="module")
def compiled_of_4_bits(quantised: Path) -> Path:
    return once(quantised.with_name("4bits"), partial(ort_aie_ep.compile, quantised))


@pytest.fixture(scope="module", params=["float32", "4bits"])
def case(request: pytest.FixtureRequest, export: Path) -> Case:
    name = f"{export.parent.name} {request.param}"
    vocab = json.loads((export / "config.json").read_text())["vocab_size"]
    if request.param == "float32":
        # Both compute in float32 and differ in the order of sums. A layer has about 60 steps, and
        # each rounds sums of at most 352 terms: 2 layers (3 for Gemma 3) · 60 · √352 · 2^-24 is
        # below 2000 · 2^-23, relative to the largest logit.
        largest = float(np.abs(teacher_forced(export, vocab, ours=False)).max())
        work = request.getfixturevalue("compiled")
        return Case(name, export, work, 2000 * float(np.finfo(np.float32).eps) * largest)
    exact = request.getfixturevalue("quantised")
    # Two yardsticks, both run by ONNX Runtime: the weights as Q4NX rounds them, and accuracy_level
    # 4, which rounds activations to 1/127 of the largest of 32, a relative error about four times
    # that of ort_aie_ep's bfloat16.
    expected = teacher_forced(exact, vocab, ours=False)
    tolerance = 0.0
    for change in (with_bfloat16_scales, with_accuracy_level):
        changed = once(exact.with_name(change.__name__), partial(change, exact))
        difference = teacher_forced(changed, vocab, ours=False) - expected
        tolerance += float(np.abs(difference).max())
    return Case(name, exact, request.getfixturevalue("compiled_of_4_bits"), tolerance)


def test_logits_match_at_every_position_of_prompts_turns_and_tokens(case: Case) -> None:
    expected = teacher_forced(case.exact, case.vocab, ours=False)
    actual = teacher_forced(case.compiled, case.vocab, ours=True)
    np.testing.assert_allclose(actual, expected, atol=case.tolerance, rtol=0)


def test_left_padded_batch_gives_the_logits_and_the_greedy_text_of_each_row(case: Case) -> None:
    rng, lengths, longest = np.random.default_rng(5), (21, 13, 4), 21
    mask = np.array([[0] * (longest - n) + [1] * n for n in lengths])
    tokens = rng.integers(3, case.vocab, mask.shape) * mask
    ours, reference = (
        Host(case.compiled / "model.onnx"),
        Host(case.exact / "model.onnx", library=False),
    )
    decided = np.ones(len(lengths), bool)
    for _ in range(NEW_TOKENS):
        expected, actual = reference(tokens, mask), ours(tokens, mask)
        real = mask[:, -tokens.shape[1] :] == 1
        np.testing.assert_allclose(actual[real], expected[real], atol=case.tolerance, rtol=0)
        second, best = np.moveaxis(np.partition(expected[:, -1], -2)[:, -2:], 1, 0)
        # The two best may both move by the tolerance, towards each other.
        decided &= best - second > 2 * case.tolerance
        greedy = expected[:, -1].argmax(-1)
        np.testing.assert_array_equal(actual[decided, -1].argmax(-1), greedy[decided])
        tokens = greedy[:, None]
        mask = np.concatenate([mask, np.ones_like(mask[:, :1])], 1)
    assert decided.any() or case.tolerance > 0.01


def test_right_padding_and_holes_hide_what_the_mask_hides(case: Case) -> None:
    rng = np.random.default_rng(6)
    mask = np.ones((3, 15), np.int64)
    mask[0, 9:], mask[1, 3:6], mask[2, ::4] = 0, 0, 0
    tokens = rng.integers(3, case.vocab, mask.shape)
    expected = Host(case.exact / "model.onnx", library=False)(tokens, mask)
    actual = Host(case.compiled / "model.onnx")(tokens, mask)
    real = mask == 1
    np.testing.assert_allclose(actual[real], expected[real], atol=case.tolerance, rtol=0)


def test_inputs_and_outputs_keep_names_types_and_shapes(case: Case) -> None:
    def signature(folder: Path) -> list[tuple[str, object, str]]:
        graph = ir.load(folder / "model.onnx").graph
        return [(v.name, v.dtype, str(v.shape)) for v in (*graph.inputs, *graph.outputs)]

    assert signature(case.compiled) == signature(case.exact)


def test_folder_keeps_the_files_that_from_pretrained_reads(case: Case) -> None:
    for name in ("config.json", "generation_config.json"):
        assert (case.compiled / name).read_bytes() == (case.exact / name).read_bytes()


def test_no_attention_and_no_mask_stays_behind(case: Case) -> None:
    nodes = list(expanded(case.compiled).graph)
    layers = json.loads((case.exact / "config.json").read_text())["num_hidden_layers"]
    assert sum(node.op_type == "FlowAttention" for node in nodes) == layers
    left = {"Softmax", "IsNaN", "And", "LessOrEqual", "Greater", "Neg", "ReduceMean", "Tanh"}
    assert not left & {node.op_type for node in nodes}


def test_explain_leaves_no_quantised_projection_on_the_cpu_ep(quantised: Path) -> None:
    fates = [fate for fate in explain(quantised).nodes if fate.runs == CPU_EP]
    products = [fate.node for fate in fates if fate.op in ("MatMul", "com.microsoft.MatMulNBits")]
    # The nodes that stay multiply positions by the rotation's frequencies: Gemma 3 has two sets.
    assert len(products) == (2 if quantised.parent.name == "gemma3" else 1)
    assert not [fate for fate in fates if fate.op == "Softmax"]


@some_families
def test_cache_in_half_precision_and_last_logits_alone(quantised: Path, tmp_path: Path) -> None:
    ort_aie_ep.compile(quantised, tmp_path / "compiled", kv="f16", last_logits=True)
    graph = ir.load(tmp_path / "compiled" / "model.onnx").graph
    caches = [v for v in (*graph.inputs, *graph.outputs) if len(v.shape) == 4]
    assert {cache.dtype for cache in caches} == {ir.DataType.FLOAT16}
    logits = Host(tmp_path / "compiled" / "model.onnx")(np.arange(3, 8)[None])
    assert logits.shape == (1, 1, 500)


@some_families
def test_a_cache_of_codes_in_calls_without_lengths(
    quantised: Path, compiled_of_4_bits: Path, tmp_path: Path
) -> None:
    ids = tmp_path / "ids.npy"
    np.save(ids, np.random.default_rng(0).integers(3, 500, (5, 48)))
    ort_aie_ep.compile(quantised, tmp_path / "codes", kv="int8", calibration=ids)
    tokens, results = np.random.default_rng(1).integers(3, 500, (2, 24)), []
    for folder in (compiled_of_4_bits, tmp_path / "codes"):
        host = Host(folder / "model.onnx")
        parts = [host(tokens[:, first:last]) for first, last in ((0, 20), (20, 21), (21, 24))]
        results.append(np.concatenate(parts, axis=1))
    # As with a cache with lengths: errors of 1 % in keys and values are on average less than a
    # tenth of the logits' spread.
    error = np.sqrt(np.mean((results[1] - results[0]) ** 2))
    assert 0 < error < results[0].std() / 10


def operators(folder: Path) -> list[tuple[str, str]]:
    return sorted((n.domain, n.op_type) for n in expanded(folder).graph)


@some_families
def test_dequantised_weights_and_float_weights_become_the_same_operators(
    export: Path, compiled_of_4_bits: Path, tmp_path: Path
) -> None:
    ort_aie_ep.compile(quantise(export, tmp_path / "qdq", qdq=True), tmp_path / "compiled_qdq")
    ort_aie_ep.compile(export, tmp_path / "quantised", quantize="q4nx")
    expected = operators(compiled_of_4_bits)
    assert operators(tmp_path / "compiled_qdq") == expected
    assert operators(tmp_path / "quantised") == expected


@some_families
def test_external_weights_become_the_same_operators(
    export: Path, compiled: Path, tmp_path: Path
) -> None:
    """Larger exports are written this way: norms, Gelus and attentions are found by running
    them."""
    shutil.copytree(export, tmp_path / "external")
    onnx.save_model(
        onnx.load(export / "model.onnx"),
        tmp_path / "external" / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=8,
    )
    ort_aie_ep.compile(tmp_path / "external", tmp_path / "compiled_external")
    assert operators(tmp_path / "compiled_external") == operators(compiled)


@pytest.mark.parametrize("export", ["llama", "llama_dynamo"], indirect=True)
def test_a_layer_is_a_norm_and_seven_more_steps(compiled_of_4_bits: Path) -> None:
    """query, key, value, attention, output, the gated MLP with its norm and residual, down. The
    first norm is a step of its own, since three projections read it."""
    found = [op for _, op in operators(compiled_of_4_bits)]
    assert found.count("Q4NXMatMul") == 2 * 5 + 1  # and the lm_head
    assert found.count("FlowAttention") == found.count("Q4NXGatedMLP") == 2
    assert found.count("RMSNorm") == 2
    assert found.count("Add") == 1  # the residual between the layers
