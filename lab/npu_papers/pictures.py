"""A picture: the plan of a vision tower, and what the papers measured."""

from __future__ import annotations

from dataclasses import dataclass

from npu_papers.tables import PICTURES
from ort_aie_ep.npu.speed.operators import Machine
from ort_aie_ep.npu.speed.plans import Composition, compose
from ort_aie_ep.npu.speed.steps import (
    AttentionStep,
    Plans,
    PlanStep,
    ProjectionStep,
    VectorStep,
)


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
    projection = compose(((_projection(tower),),), tokens, tokens, machine)
    seconds = layers.timing.seconds + projection.timing.seconds
    measured = PICTURES[model]
    others = {name: value for name, value in measured.items() if name != "NPU"}
    return Picture(model, device, layers, projection, seconds, measured["NPU"], others)


def layers_of(tower: Tower) -> Plans:
    """The plans that `ort-aie compile --quantize bf16` makes of the layers.

    Layer norms, which are nodes of ONNX Runtime's, divide them: two plans a layer.
    """
    plans: list[tuple[PlanStep, ...]] = []
    stream = "embedded"
    for layer in range(tower.layers):
        plans += [_attention(tower, f"{layer}/", stream), _mlp(tower, f"{layer}/")]
        stream = f"{layer}/out"
    return tuple(plans)


def _product(name: str, n: int, k: int, a: str) -> ProjectionStep:
    return ProjectionStep(name, n, k, a, name, form=None, bias=True)


def _attention(tower: Tower, name: str, stream: str) -> tuple[PlanStep, ...]:
    width, normed = tower.hidden, f"{name}norm1"
    query, key, value = (f"{name}{part}" for part in "qkv")
    return (
        *(_product(x, width, width, normed) for x in (query, key, value)),
        AttentionStep(
            f"{name}attention", tower.heads, tower.heads, width // tower.heads, query, key, value,
            ("", ""), f"{name}context", (f"{name}keys", f"{name}values"), causal=False,
        ),
        _product(f"{name}o", width, width, f"{name}context"),
        VectorStep(f"{name}middle", "add", width, stream, f"{name}middle", b=f"{name}o"),
    )  # fmt: skip


def _mlp(tower: Tower, name: str) -> tuple[PlanStep, ...]:
    wide = f"{name}wide"
    return (
        _product(wide, tower.ffn, tower.hidden, f"{name}norm2"),
        VectorStep(f"{name}gelu", "gelu_tanh", tower.ffn, wide, f"{name}gelu"),
        _product(f"{name}down", tower.hidden, tower.ffn, f"{name}gelu"),
        VectorStep(
            f"{name}out", "add", tower.hidden, f"{name}middle", f"{name}out", b=f"{name}down"
        ),
    )


def _projection(tower: Tower) -> ProjectionStep:
    return ProjectionStep("features", tower.text, tower.hidden, "pooled", "features", form=None)
