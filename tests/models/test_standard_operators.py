"""A model with ONNX's own operators, as torch.onnx.export(dynamo=True) writes it, compiled and run.

tests/data/dynamo (lab/make_dynamo_model.py): a Qwen3 of two layers at opset 23, whose MatMuls
read int4 weights through DequantizeLinear.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from expanded import expanded
from op_models import session_options
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app

Array = npt.NDArray[Any]
SOURCE = Path(__file__).parent.parent / "data" / "dynamo"
LAYERS, KV_HEADS, HEAD_DIM, VOCABULARY = 2, 2, 32, 200

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31),
    reason="needs the causal order of ONNX Runtime's Attention from 1.31 on",
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dynamo") / "compiled"
    ort_aie_ep.compile(SOURCE, folder)
    return folder


class Generator:
    """A session, with the cache between its calls, for a batch whose rows start with padding."""

    def __init__(self, folder: Path, paddings: list[int], *, ours: bool) -> None:
        options = session_options()
        options.log_severity_level = 3
        if ours:
            options.register_custom_ops_library(ort_aie_ep.library_path())
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.paddings = np.array(paddings)[:, None]
        empty = np.zeros((len(paddings), KV_HEADS, 0, HEAD_DIM), np.float32)
        self.cache = {name.replace("present", "past"): empty for name in self.outputs[1:]}
        self.total = 0

    def __call__(self, tokens: Array) -> Array:
        """(batch, tokens) -> logits of the tokens that are not padding, (count, vocabulary)."""
        index = np.arange(self.total, self.total + tokens.shape[1])
        self.total += tokens.shape[1]
        feeds = {
            "input_ids": tokens,
            "attention_mask": (np.arange(self.total) >= self.paddings).astype(np.int64),
            "position_ids": np.maximum(index - self.paddings, 0),
            **self.cache,
        }
        results = dict(zip(self.outputs, self.session.run(None, feeds), strict=True))
        self.cache = {name: results[name.replace("past", "present")] for name in self.cache}
        logits: Array = results["logits"][index >= self.paddings]
        return logits


def test_what_it_is_made_of(compiled: Path) -> None:
    operators = Counter(node.op_type for node in expanded(compiled).graph)
    # The projections of queries, keys, values and the output, the MLP's last one, and the lm_head.
    assert operators["Q4NXMatMul"] == 5 * LAYERS + 1
    assert operators["Q4NXGatedMLP"] == operators["FlowAttention"] == LAYERS
    assert not {"DequantizeLinear", "Attention", "RotaryEmbedding", "Sigmoid"} & set(operators)
    # Positions times frequencies: the angles for all layers.
    assert operators["MatMul"] == operators["Transpose"] == 1
    # Norms that the projections of queries, keys and values share.
    assert operators["RMSNorm"] == LAYERS
    # Nothing is left of the mask's computation.
    assert not {"LessOrEqual", "And", "GatherND", "Where"} & set(operators)


def test_explain_names_no_reason() -> None:
    result = CliRunner().invoke(app, ["explain", str(SOURCE)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if "RotaryEmbedding" in line]
    assert rows
    assert all("FlowAttention" in row for row in rows)


@pytest.mark.parametrize("paddings", [[0], [0, 5, 17]])
@pytest.mark.parametrize("pieces", [[20, 1, 1, 1], [3, 30, 1, 7, 1], [1, 1, 1]])
def test_every_turn_gives_what_onnx_runtime_gives(
    compiled: Path, paddings: list[int], pieces: list[int]
) -> None:
    """Each projection's activations are rounded to bfloat16 (2^-9), 7 projections in a layer:
    independent errors, relative to what they are added to. The root of their squares is 0.7 %, and
    softmax and norms pass errors on; a wrong row or position would be worth 100 %."""
    rng = np.random.default_rng(sum(pieces))
    ours, theirs = (
        Generator(folder, paddings, ours=folder is compiled) for folder in (compiled, SOURCE)
    )
    for count in pieces:
        tokens = rng.integers(0, VOCABULARY, (len(paddings), count))
        actual, expected = ours(tokens), theirs(tokens)
        assert actual.shape == expected.shape
        assert np.linalg.norm(actual - expected) <= 0.03 * np.linalg.norm(expected)
        for name, past in theirs.cache.items():
            shown = (np.arange(past.shape[2]) >= ours.paddings)[:, None, :, None]
            difference = (ours.cache[name] - past) * shown
            assert np.linalg.norm(difference) <= 0.03 * np.linalg.norm(past * shown), name
