"""The vision tower in the performance model: its plan, and a picture beside paper 2."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from npu_papers.machine import Machine
from npu_papers.model import simulate
from npu_papers.pictures import TOWERS, Tower, layers_of, picture_of
from vision_tower import vision_tower

import ort_aie_ep
from ort_aie_ep.prediction.compiled import read_plans
from ort_aie_ep.prediction.composition import compose

MACHINE = Machine()


@pytest.mark.parametrize("spelling", ["MultiHeadAttention", "eager"])
def test_a_tower_has_the_plan_of_its_compiled_model(spelling: str, tmp_path: Path) -> None:
    tower = Tower(3, 144, 2, 160, patches=64, tokens=16, text=128)
    model, _ = vision_tower(
        tower.patches, 75, tower.hidden, tower.ffn, tower.layers, tower.heads, spelling
    )
    onnx.save(model, tmp_path / "tower.onnx")
    ort_aie_ep.compile(tmp_path / "tower.onnx", tmp_path / "compiled", quantize="bf16")
    embedding, *layers = read_plans(tmp_path / "compiled").plans
    assert embedding.recipe.count("\nstep ") == 1
    assert "/embed/MatMul" in embedding.recipe
    assert compose(tuple(layers), 64, 64, MACHINE) == compose(layers_of(tower), 64, 64, MACHINE)


def test_a_picture_of_gemma3_is_beside_the_papers_time() -> None:
    picture = simulate("gemma3-4b", contexts=[64]).picture
    assert picture is not None
    assert (picture.paper, picture.others) == (4.41, {"iGPU": 7.45, "CPU": 38.55})
    layers = TOWERS["gemma3-4b"].layers
    assert picture.layers.device_steps == 7 * layers
    # A GELU and two sums in each layer.
    assert picture.layers.host_steps == {"a vector operator on several rows": 3 * layers}
    both = picture.layers.timing.seconds + picture.projection.timing.seconds
    assert picture.seconds == both
    # No faster than the bare products at the array's peak, 4,096 x 1,152 x 4,304 and so on.
    products = 4096 * (4 * 1152**2 + 2 * 1152 * 4304) * layers
    assert picture.layers.timing.parts["gemm"] > 2 * products / 50e12


def test_other_models_have_no_picture() -> None:
    assert picture_of("llama-3.2-1b", "npu2", MACHINE) is None
