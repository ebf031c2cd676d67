"""`--quantize mixed` and `--importance`: which matrices get how many bits, and what counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from float_models import graph_model, matrix
from onnx import TensorProto, helper
from op_models import ORT_VERSION
from optimum_models import write_export

import ort_aie_ep
from ort_aie_ep.compiler import widths
from ort_aie_ep.compiler.compile import REPORT
from ort_aie_ep.compiler.importance import Importance, measure
from ort_aie_ep.compiler.widths import by_budget, by_rule
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes.projection.float_matmul import quantisable
from ort_aie_ep.graph_passes.unique_names import name_nodes, name_values
from ort_aie_ep.graph_passes.weights.float_weights import WeightForm
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.tools.synth import synth

DATA = Path(__file__).parents[2] / "data"
WORDS = "".join(f"def f{i}(x):\n    return x * {i}\n\n" for i in range(3000))
Q2, Q4, Q8 = WeightForm.Q2NX, WeightForm.Q4NX, WeightForm.Q8NX


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model of the builder's graph, with the tokenizer of as many tokens."""
    folder = synth("tiny-llama", tmp_path_factory.mktemp("float") / "llama", int4=False)
    shutil.copy(DATA / "llama" / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(WORDS)
    return path


def products(path: Path) -> list[widths.Product]:
    model = load_model(find_model(path).model)
    name_nodes(model)
    name_values(model)
    return quantisable(model, [])


def of_layers(count: int, names: dict[str, str]) -> list[widths.Product]:
    """Products of `count` layers, by the names of nodes and of their weights; with an lm_head."""
    labels = {
        node.replace("N", str(layer)): weights.replace("N", str(layer))
        for layer in range(count)
        for node, weights in names.items()
    } | {"/lm_head/MatMul": "lm_head.weight"}
    nodes = [
        helper.make_node("MatMul", ["x", weights], [f"y{i}"], name=node)
        for i, (node, weights) in enumerate(labels.items())
    ]
    arrays = {weights: np.ones((32, 32), np.float32) for weights in labels.values()}
    outputs: dict[str, tuple[int | str, ...]] = {
        f"y{i}": ("batch", "sequence", 32) for i in range(len(nodes))
    }
    model = ir.from_proto(graph_model(nodes, arrays, x=("batch", "sequence", 32), outputs=outputs))
    return quantisable(model, [])


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "promoted"),
    [
        # What onnxruntime-genai 0.18 puts into `int4_customized_weight_config`.
        (2, {0}),
        (5, {0, 3}),
        (16, {0, 1, 4, 7, 10, 13, 14, 15}),
        (28, {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 25, 26, 27}),
    ],
)
@pytest.mark.parametrize(
    "names",
    [
        {
            "/model/layers.N/attn/qkv_proj/MatMul": "a.N",
            "/model/layers.N/mlp/up_proj/MatMul": "b.N",
            "/model/layers.N/mlp/down_proj/MatMul": "c.N",
        },
        {
            "node_MatMul_N0": "model.layers.N.self_attn.v_proj.weight",
            "node_MatMul_N1": "model.layers.N.self_attn.k_proj.weight",
            "node_MatMul_N2": "model.layers.N.mlp.down_proj.weight",
        },
    ],
    ids=["nodes", "weights"],
)
def test_the_rule_is_the_builders(layers: int, promoted: set[int], names: dict[str, str]) -> None:
    first, _, third = names.values()
    expected = {part.replace("N", str(i)) for part in (first, third) for i in promoted}
    found = by_rule(of_layers(layers, names))
    assert found == dict.fromkeys(expected | {"lm_head.weight"}, Q8)


def test_names_that_only_look_alike_are_not_promoted() -> None:
    names = {"/layers.N/attn/my_v_proj/MatMul": "x.N", "/sublayers.N/v_proj/MatMul": "y.N"}
    assert set(by_rule(of_layers(4, names))) == {"lm_head.weight"}


# --- importance -----------------------------------------------------------------------------------


def test_importance_is_the_mean_square_of_what_a_product_multiplies(
    llama: Path, tmp_path: Path
) -> None:
    ids = np.random.default_rng(0).integers(0, 500, (3, 40))
    np.save(tmp_path / "ids.npy", ids)
    found = measure(find_model(llama), tmp_path / "ids.npy", ["/lm_head/*"], None)
    assert found.tokens == 120
    assert len(found.of) == 10  # without the lm_head, which stays
    # The same activations, as outputs of the model.
    model = onnx.load(llama / "model.onnx", load_external_data=False)
    node = next(n for n in model.graph.node if n.name == "/model/layers.1/mlp/down_proj/MatMul")
    model.graph.output.append(helper.make_tensor_value_info(node.input[0], TensorProto.FLOAT, None))
    onnx.save(model, llama / "shown.onnx")
    session = onnxruntime.InferenceSession(llama / "shown.onnx")
    (llama / "shown.onnx").unlink()
    config = json.loads((llama / "genai_config.json").read_text())
    head_size, squares = config["model"]["decoder"]["head_size"], []
    for row in ids:
        feeds: dict[str, Any] = {"input_ids": row[None], "attention_mask": np.ones((1, 40), int)}
        for value in session.get_inputs():
            if value.name not in feeds:
                shape = [1, value.shape[1], 0, head_size]
                feeds[value.name] = np.zeros(shape, np.float32)
        squares.append(np.square(session.run([node.input[0]], feeds)[0][0].astype(np.float64)))
    expected = np.concatenate(squares).mean(axis=0)
    # What the text never uses counts a hundredth of the mean.
    expected += 0.01 * expected.mean()
    np.testing.assert_allclose(found.of[node.input[1]], expected, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_export_is_measured_in_its_own_type(dtype: str, tmp_path: Path) -> None:
    source = write_export("llama", tmp_path / "source")
    if dtype == "float16":
        if ORT_VERSION < (1, 24):
            pytest.skip("its fusions fail on a float16 export")
        from onnxruntime.transformers.float16 import convert_float_to_float16

        model = convert_float_to_float16(onnx.load(source / "model.onnx"), keep_io_types=True)
        for file in source.glob("model.onnx*"):
            file.unlink()
        onnx.save(model, source / "model.onnx")
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(3, 100, (2, 20)))
    found = measure(find_model(source), tmp_path / "ids.npy", [], None)
    assert set(found.of) == {w.key for _, w in products(source)}
    assert all((v > 0).all() for v in found.of.values())


def test_weighted_weights_err_less_where_it_counts(llama: Path, text: Path, tmp_path: Path) -> None:
    for name, options in (("plain", {}), ("weighed", {"importance": text})):
        result = ort_aie_ep.compile(llama, tmp_path / name, quantize="q4nx", **options)
        assert {layer.form for layer in result.layers} == {"q4nx"}
    report = json.loads((tmp_path / "weighed" / REPORT).read_text())
    assert report["notes"] == [f"importance comes from 4096 tokens of {text}"]
    plain, weighed = (
        {layer["node"]: layer["relative"] for layer in json.loads(path.read_text())["layers"]}
        for path in (tmp_path / "plain" / REPORT, tmp_path / "weighed" / REPORT)
    )
    # Errors that count less grow.
    assert all(weighed[node] > plain[node] for node in plain)


# --- a budget -------------------------------------------------------------------------------------


def mean_bits(forms: dict[str, WeightForm], of: list[widths.Product]) -> float:
    sizes = {w.key: int(np.prod(w.shape)) for _, w in of}
    return sum(sizes[key] * form.bits for key, form in forms.items()) / sum(sizes.values())


@pytest.mark.parametrize("bits", [2, 3.9, 4, 6, 8])
def test_a_budget_is_kept_and_used(llama: Path, bits: float) -> None:
    of = products(llama)
    importance = Importance("", 0, {w.key: np.ones(w.shape[0], np.float32) for _, w in of})
    forms = by_budget(of, importance, bits, None)
    mean = mean_bits(forms, of)
    assert mean <= bits
    # No matrix is left that its next width would still fit.
    room = (bits - mean) * sum(np.prod(w.shape) for _, w in of)
    following = {Q2: 2, Q4: 4, Q8: None}
    for _, weights in of:
        more = following[forms[weights.key]]
        gate_and_up = 2 if "gate" in weights.key or "up_proj" in weights.key else 1
        assert more is None or gate_and_up * more * np.prod(weights.shape) > room
    assert set(forms.values()) <= ({Q2, Q4, Q8} if bits < 4 else {Q4, Q8})
    for layer in range(2):  # one operator only if they have the same width
        gate, up = (f"model.layers.{layer}.mlp.{x}_proj.MatMul.weight" for x in ("gate", "up"))
        assert forms[gate] == forms[up]


def test_a_budget_goes_where_the_error_is(llama: Path) -> None:
    """Per byte, so of two matrices whose errors count the same the smaller one is first."""
    of = products(llama)
    counts = {w.key: np.ones(w.shape[0], np.float32) for _, w in of}
    loud = "model.layers.1.attn.o_proj.MatMul.weight"
    counts[loud] *= 1000
    forms = by_budget(of, Importance("", 0, counts), 4.5, None)
    assert forms[loud] is Q8
    counts[loud] *= 1e-6
    forms = by_budget(of, Importance("", 0, counts), 3.5, None)
    assert forms[loud] is Q2


def test_a_budget_below_four_bits_compiles(llama: Path, text: Path, tmp_path: Path) -> None:
    stages: list[tuple[int, int]] = []
    result = ort_aie_ep.compile(
        llama, tmp_path / "compiled", quantize="mixed", importance=text, bits=3,
        progress=lambda done, total, _: stages.append((done, total)),
    )  # fmt: skip
    assert {layer.form for layer in result.layers} == {"q2nx", "q4nx"}
    note = next(note for note in result.notes if note.startswith("mixed: "))
    sizes = {layer: layer.k * layer.n for layer in result.layers}
    mean = sum(WeightForm(one.form).bits * size for one, size in sizes.items())
    mean /= sum(sizes.values())
    assert f"{mean:.2f} bits" in note
    assert 2.5 < mean <= 3
    # Each stage ends at its total: reading, measuring, writing.
    ends = [
        now for now, then in zip(stages, [*stages[1:], (0, 0)], strict=True) if then[0] < now[0]
    ]
    assert len(ends) == 3
    assert all(done == total for done, total in ends)
    kinds = {o.becomes for o in result.outcomes if o.op_type == "MatMul"}
    assert kinds == {"aie.Q4NXMatMul", "aie.Q4NXGatedMLP"}


# --- wrong choices --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"importance": "text"}, "importance is for float weights: pass quantize as well"),
        ({"bits": 4}, "bits is for float weights: pass quantize as well"),
        ({"quantize": "bf16", "importance": "text"}, "importance changes nothing for bf16"),
        ({"quantize": "q8nx", "importance": "text"}, "importance changes nothing for q8nx"),
        ({"quantize": "mixed", "bits": 4}, "pass quantize=mixed and importance as well"),
        ({"quantize": "q4nx", "importance": "text", "bits": 4}, "pass quantize=mixed and import"),
        ({"quantize": "mixed", "importance": "text", "bits": 1.9}, "bits is 1.9; expected 2 to 8"),
        ({"quantize": "mixed", "importance": "text", "bits": 9}, "bits is 9; expected 2 to 8"),
        (
            {"quantize": "mixed", "importance": "text", "bits": float("nan")},
            "bits is nan; expected",
        ),
        ({"quantize": "q4nx", "importance": "absent"}, "text absent cannot be read"),
        ({"quantize": "q4nx", "importance": "short"}, "one of 16 parts of it has . tokens"),
    ],
)
def test_wrong_choices_are_named(
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("a few words and no more")
    Path("text").write_text(WORDS)
    with pytest.raises(AieError, match=message):
        ort_aie_ep.compile(llama, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_text_needs_a_tokenizer(text: Path, tmp_path: Path) -> None:
    source = synth("tiny-llama", tmp_path / "source", int4=False)
    with pytest.raises(AieError, match=r"tokenizer\.json .*--importance"):
        ort_aie_ep.compile(source, tmp_path / "out", quantize="q4nx", importance=text)


def test_a_model_that_text_cannot_be_fed_to_is_named(text: Path, tmp_path: Path) -> None:
    arrays = {"w": matrix(64, 64)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="/proj/MatMul")]
    model = graph_model(nodes, arrays, x=("b", "s", 64), outputs={"y": ("b", "s", 64)})
    (tmp_path / "source").mkdir()
    onnx.save(model, tmp_path / "source" / "model.onnx")
    shutil.copy(DATA / "llama" / "tokenizer.json", tmp_path / "source")
    with pytest.raises(AieError, match=r"importance: "):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "o", quantize="q4nx", importance=text)
    with pytest.raises(AieError, match=r"mixed: .*importance and bits"):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "o", quantize="mixed")


def test_the_cache_tells_texts_apart(llama: Path, text: Path, tmp_path: Path) -> None:
    own = tmp_path / "text"
    shutil.copy(text, own)
    for count, change in enumerate(("", "", "class Other:\n    pass\n" * 3000), 1):
        own.write_text(change or WORDS)
        ort_aie_ep.session(llama, quantize="q4nx", importance=own, cache_dir=tmp_path / "cache")
        entries = list((tmp_path / "cache").glob("*/model.onnx"))
        assert len(entries) == max(1, count - 1)
