"""Files that FastFlowLM's public converter wrote, compared with transformers on the same
weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from expanded import expanded
from text_host import Host

from ort_aie_ep.compiler.fastflowlm import import_q4nx

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """lab/make_q4nx_models.py computed them: rows of q and k in the rotary embedding's order,
    scaled frequencies, signed codes, norms and embeddings all have the converter's meaning."""
    import_q4nx(DATA / f"q4nx_{name}" / "model.q4nx", tmp_path / "model")
    expected = np.load(DATA / f"q4nx_{name}" / "expected.npz")
    actual = Host(tmp_path / "model" / "model.onnx")(expected["tokens"])[0]
    # transformers' own bfloat16 rounds weights and activations as these numerics do, and also sums,
    # residuals and logits.
    tolerance = float(expected["bfloat16_error"])
    # Values in a wrong place would make errors of several deviations.
    assert tolerance < 0.25 * expected["logits"].std()
    np.testing.assert_allclose(actual, expected["logits"], atol=tolerance, rtol=0)


@pytest.mark.parametrize("fuse", [True, False])
def test_the_converters_kinds_are_told_apart(fuse: bool, tmp_path: Path) -> None:
    """v and up are Q4_0. v shares a node with q and k, and up shares one with gate if that is
    fused."""
    import_q4nx(DATA / "q4nx_llama" / "model.q4nx", tmp_path / "model", fuse=fuse)
    symmetric = {
        node.name
        for node in expanded(tmp_path / "model").graph
        if "symmetric" in node.attributes and node.attributes["symmetric"].as_int() == 1
    }
    up = {f"/model/layers.{layer}/mlp/up_proj/MatMul_Q4" for layer in range(2)}
    assert symmetric == (set() if fuse else up)
