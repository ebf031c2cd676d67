"""A picture: the plan of a vision tower, and what the papers measured."""

from __future__ import annotations

from dataclasses import dataclass

from npu_papers.machine import Machine
from npu_papers.tables import PICTURES
from ort_aie_ep.formats.q4nx import BLOCK_COLS, BLOCK_ROWS
from ort_aie_ep.prediction.composition import Composition, compose
from ort_aie_ep.prediction.recipes import BFLOAT16, FLOAT, PlanNode, Plans, RecipeBuilder


@dataclass(frozen=True)
class Tower:
    """The vision tower of a model: SigLIP, and the projection of `tokens` pooled patches to the
    hidden size `text` of the text model."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    patches: int
    tokens: int
    text: int


#: By the name of the text model. Paper 2 writes 24 layers; the published config.json has 27.
TOWERS = {"gemma3-4b": Tower(27, 1152, 16, 4304, patches=4096, tokens=256, text=2560)}


@dataclass(frozen=True)
class Picture:
    """What this library's plan of a vision tower does for one picture.

    `seconds` is the device's time for the layers and for the projection; the host's steps, which
    the two compositions count, take more. `paper` is paper 2's time on its NPU, and `others` its
    times on other hardware.
    """

    model: str
    device: str
    layers: Composition
    projection: Composition
    seconds: float
    paper: float
    others: dict[str, float]


def picture_of(model: str, device: str, machine: Machine) -> Picture | None:
    """One picture, or None for a model without a vision tower."""
    tower = TOWERS.get(model)
    if tower is None:
        return None
    patches, tokens = tower.patches, tower.tokens
    layers = compose(layers_of(tower), patches, patches, machine)
    projection = compose(_projection(tower), tokens, tokens, machine)
    seconds = layers.timing.seconds + projection.timing.seconds
    measured = PICTURES[model]
    others = {name: value for name, value in measured.items() if name != "NPU"}
    return Picture(model, device, layers, projection, seconds, measured["NPU"], others)


def layers_of(tower: Tower) -> Plans:
    """The plans that `ort-aie compile --quantize bf16` makes of the layers of a tower.

    Layer norms, which are nodes of ONNX Runtime's, divide them: two plans a layer.
    """
    return (_attention_of(tower), _mlp_of(tower)) * tower.layers


def _projection(tower: Tower) -> Plans:
    """The projection of the pooled patches."""
    recipe = RecipeBuilder()
    pooled = recipe.input(FLOAT, 1, "tokens", tower.hidden)
    return (
        recipe.node(_product(recipe, "features", tower.text, tower.hidden, pooled, bias=False)),
    )


def _product(
    recipe: RecipeBuilder, name: str, n: int, k: int, a: int, *, bias: bool = True
) -> tuple[int, ...]:
    blocks = -(-n // BLOCK_ROWS), -(-k // BLOCK_COLS), BLOCK_ROWS * BLOCK_COLS
    reads = [a, recipe.constant(BFLOAT16, *blocks)]
    if bias:
        reads.append(recipe.constant(FLOAT, n))
    return recipe.step("GEMM", name, reads, K=k, N=n, format=1)


def _attention_of(tower: Tower) -> PlanNode:
    recipe, width = RecipeBuilder(), tower.hidden
    stream = recipe.input(FLOAT, 1, "tokens", width)
    normed = recipe.input(FLOAT, 1, "tokens", width)
    parts = [_product(recipe, part, width, width, normed)[0] for part in "qkv"]
    context, *present = recipe.step(
        "FlowAttention", "attention", parts, 3, num_heads=tower.heads, kv_num_heads=tower.heads,
        causal=0, format=1,
    )  # fmt: skip
    (o,) = _product(recipe, "o", width, width, context)
    (middle,) = recipe.step("Add", "middle", [stream, o], format=1)
    return recipe.node([middle, *present])


def _mlp_of(tower: Tower) -> PlanNode:
    recipe = RecipeBuilder()
    middle = recipe.input(FLOAT, 1, "tokens", tower.hidden)
    normed = recipe.input(FLOAT, 1, "tokens", tower.hidden)
    (wide,) = _product(recipe, "wide", tower.ffn, tower.hidden, normed)
    (gelu,) = recipe.step("Activation", "gelu", [wide], function="gelu_tanh", format=1)
    (down,) = _product(recipe, "down", tower.hidden, tower.ffn, gelu)
    return recipe.node(recipe.step("Add", "out", [middle, down], format=1))
