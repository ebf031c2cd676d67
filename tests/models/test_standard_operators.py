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
from text_host import Host
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app

Array = npt.NDArray[Any]
SOURCE = Path(__file__).parent.parent / "data" / "dynamo"
LAYERS, VOCABULARY = 2, 200

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31),
    reason="needs the causal order of ONNX Runtime's Attention from 1.31 on",
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dynamo") / "compiled"
    ort_aie_ep.compile(SOURCE, folder)
    return folder


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
    ours, theirs = (Host(f / "model.onnx", library=f is compiled) for f in (compiled, SOURCE))
    for end in np.cumsum(pieces):
        mask = np.arange(end) >= np.array(paddings)[:, None]
        tokens = rng.integers(0, VOCABULARY, (len(paddings), end - ours.total))
        shown = mask[:, ours.total :]
        actual, expected = (host(tokens, mask.astype(np.int64))[shown] for host in (ours, theirs))
        assert actual.shape == expected.shape
        assert np.linalg.norm(actual - expected) <= 0.03 * np.linalg.norm(expected)
        for name, past in theirs.past.items():
            rows = mask[:, None, :, None]
            difference = (ours.past[name] - past) * rows
            assert np.linalg.norm(difference) <= 0.03 * np.linalg.norm(past * rows), name
