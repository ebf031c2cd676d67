"""Files from before August 2026: dtype "Q4NX", the matrix's shape, and zero points."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy_q4nx as q4nx
import pytest
from expanded import expanded
from q4nx_files import TINY, Array, Tensors, config_of, sizes_of_one_layer, write_container

from ort_aie_ep.compiler.fastflowlm import export_q4nx, import_q4nx
from ort_aie_ep.compiler.fastflowlm.container import read_container
from ort_aie_ep.errors import AieError

# As the older reader has it, blocks are whole.
SHAPE = replace(
    TINY["llama"], hidden=256, ffn=512, layers=1, heads=4, kv_heads=2, head_dim=64, vocab=64
)
PLACE = "model.layers.0"
MATRICES = sizes_of_one_layer(SHAPE)


def floats() -> Tensors:
    rng = np.random.default_rng(1)
    norms = (f"{PLACE}.input_layernorm", f"{PLACE}.post_attention_layernorm", "model.norm")
    sizes = {name: (SHAPE.hidden,) for name in norms}
    sizes["model.embed_tokens"] = (SHAPE.vocab, SHAPE.hidden)
    return {
        f"{name}.weight": ("BF16", rng.normal(1, 0.1, size).astype(ml_dtypes.bfloat16))
        for name, size in sizes.items()
    }


def parts(name: str, zero: float | None) -> tuple[Array, Array, Array]:
    """Codes, scales and zero points of a matrix; all zero points the same, or random ones."""
    n, k = MATRICES[name]
    rng = np.random.default_rng([ord(letter) for letter in name])
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    scales = rng.normal(0, 0.1, (n, k // 32)).astype(ml_dtypes.bfloat16)
    zeros = rng.uniform(0, 15, scales.shape) if zero is None else np.full(scales.shape, zero)
    return codes, scales, zeros.astype(ml_dtypes.bfloat16)


def write(path: Path, zero: float | None, *, shapes: dict[str, list[int]] | None = None) -> Path:
    packed = {
        f"{name}.weight": ("Q4NX", q4nx.pack(*parts(name, zero)).reshape(-1)) for name in MATRICES
    }
    of_matrices = {f"{name}.weight": [*size] for name, size in MATRICES.items()}
    write_container(path, floats() | packed, shapes=of_matrices | (shapes or {}))
    path.with_name("config.json").write_text(json.dumps(config_of(SHAPE)))
    return path


@pytest.mark.parametrize("zero", [None, 8, 7])
def test_zero_points_become_minima(zero: float | None, tmp_path: Path) -> None:
    import_q4nx(write(tmp_path / "model.q4nx", zero), tmp_path / "imported")
    graph = expanded(tmp_path / "imported").graph
    value = graph.initializers[f"{PLACE}.mlp.down_proj.MatMul.weight_Q4_q4nx"]
    assert value.const_value is not None
    actual = q4nx.dequantize(value.const_value.numpy(), SHAPE.hidden, SHAPE.ffn)
    codes, scales, zeros = parts(f"{PLACE}.mlp.down_proj", zero)
    scale, offset = (x.astype(np.float32).repeat(32, axis=1) for x in (scales, zeros))
    expected = scale * (codes - offset)
    # min = -scale * zero is rounded to bfloat16, by at most 2 ** -8 of it, and once in float32.
    error = np.abs(actual - expected)
    assert (error <= np.abs(scale * offset) * (2**-8 + 2**-22)).all()
    assert error.any() == (zero is None or zero == 7)
    (node,) = value.consumers()
    assert node.attributes["symmetric"].as_int() == (zero == 8)


def test_such_a_model_is_exported_in_the_newer_form(tmp_path: Path) -> None:
    import_q4nx(write(tmp_path / "model.q4nx", None), tmp_path / "imported")
    (tmp_path / "newer").mkdir()
    export_q4nx(tmp_path / "imported", tmp_path / "newer" / "model.q4nx")
    dtypes = {each.dtype for each in read_container(tmp_path / "newer" / "model.q4nx").values()}
    assert dtypes == {"I8", "BF16"}
    import_q4nx(tmp_path / "newer" / "model.q4nx", tmp_path / "again")
    data = [(tmp_path / one / "model.onnx.data").read_bytes() for one in ("imported", "again")]
    assert data[0] == data[1]


def test_a_shape_that_is_not_the_matrixs_is_refused(tmp_path: Path) -> None:
    name = f"{PLACE}.mlp.down_proj.weight"
    source = write(tmp_path / "model.q4nx", None, shapes={name: [SHAPE.ffn, SHAPE.hidden]})
    message = r"is Q4NX \(512, 256\); by config.json it must be \(256, 512\)"
    with pytest.raises(AieError, match=message):
        import_q4nx(source, tmp_path / "imported")


def test_a_size_that_is_not_the_shapes_is_refused(tmp_path: Path) -> None:
    name = f"{PLACE}.mlp.down_proj.weight"
    source = write(tmp_path / "model.q4nx", None, shapes={name: [SHAPE.hidden, SHAPE.ffn + 256]})
    with pytest.raises(AieError, match=r"\(256, 768\) .*122880"):
        read_container(source)
