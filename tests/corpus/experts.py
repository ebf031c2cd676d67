"""QMoE, and the Reshape between a router and its experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from expert_models import PLACES, ROUTER_WEIGHTS, Experts, build
from graphs import Array, Entry, Given, steps

# Activations are rounded to bfloat16 twice, in two products of which one is a factor: independent
# errors of 2^-9 each, of which few cross to the next code.
NEAR = 2.0**-6


def logits(experts: int, rows: int) -> Array:
    """They differ by enough to choose alike in any precision."""
    rng = np.random.default_rng([experts, rows])
    ranks = np.stack([rng.permutation(experts) for _ in range(rows)])
    return (ranks * 0.25 - 1).astype(np.float32)


def text(case: Experts, router: str = "router", more: Mapping[int, str] = {}) -> str:
    names = ["x", router, *[""] * 15]
    for place, (name, _) in build(case).inputs.items():
        names[place] = name
    if case.router_weights:
        names[ROUTER_WEIGHTS] = "chosen"
    for place, name in more.items():
        names += [""] * (place + 1 - len(names))
        names[place] = name
    given: dict[str, Any] = {"k": case.top_k, "activation_type": case.activation,
                             "swiglu_fusion": case.fusion}  # fmt: skip
    if isinstance(case.bits, int):
        given["expert_weight_bits"] = case.bits
    else:
        given |= {f"{fc}_expert_weight_bits": bits for fc, bits in case.bits.items()}
    given |= {"block_size": case.block_size} if case.block_size else {}
    given |= {"quant_type": "fp4"} if case.fp4 else {}
    given |= case.attributes
    while not names[-1]:
        names.pop()
    attributes = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return f"y = QMoE<{attributes}>({', '.join(name or '-' for name in names)})"


def entry(name: str, case: Experts, becomes: str, given: Mapping[str, Given] = {}, *,
          graph: str = "", **more: Any) -> Entry:  # fmt: skip
    known: dict[str, Given] = {
        **dict(build(case).inputs.values()),
        "x": ["batch", "sequence", case.hidden],
        "router": ["tokens", case.experts],
        "chosen": ["tokens", case.experts],
    }
    feeds = {
        "router": lambda s: logits(case.experts, s["tokens"]),
        "chosen": lambda s: np.random.default_rng(2).uniform(0.1, 1, (s["tokens"], case.experts))
        .astype(np.float32),
    } | more.pop("feeds", {})  # fmt: skip
    found = {"near": NEAR, "since": (1, 31), "feeds": feeds,
             "sizes": ({"batch": 1, "sequence": n, "tokens": n}
                       for n in (1, 5))} | more  # fmt: skip
    found["sizes"] = tuple(found["sizes"])
    return Entry(
        name, graph or text(case), becomes, given=known | dict(given), dtype=case.dtype, **found
    )


GPT_OSS = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.5}
# What ONNX Runtime's CPU kernel computes as well, and what the step says of it.
TAKEN = {
    "silu": (Experts(activation="silu", fusion=0), "activation=silu"),
    "gelu": (Experts(activation="gelu", fusion=0, biases=True), "activation=gelu_tanh"),
    "relu": (Experts(activation="relu", fusion=0, biases=True), "activation=relu"),
    "identity": (Experts(activation="identity", fusion=0), "activation=none"),
    "swiglu": (Experts(), "activation=silu"),
    "gpt-oss": (Experts(biases=True, attributes=GPT_OSS),
                "activation=swiglu alpha=1.702 beta=1 limit=1.5"),
    "8 bits": (Experts(bits=8, block_size=0, hidden=320, inter=96, zero_points=True),
               "activation=silu down_bits=8 symmetric=0"),
    "zero points": (Experts(zero_points=True), "activation=silu symmetric=0"),
    "a scale for each out-feature": (Experts(block_size=0, hidden=40, inter=24), "activation=silu"),
    "blocks of 64": (Experts(block_size=64, inter=64), "activation=silu"),
    "router_weights": (Experts(router_weights=True), "activation=silu"),
    "normalised router_weights": (
        Experts(router_weights=True, attributes={"normalize_routing_weights": 1}),
        "activation=silu normalize=1"),
    "a normalised softmax": (Experts(attributes={"normalize_routing_weights": 1}),
                             "activation=silu"),
    "rows that are no whole blocks": (
        Experts(experts=8, hidden=320, inter=288, biases=True, zero_points=True),
        "activation=silu symmetric=0"),
    "many experts": (Experts(experts=8, top_k=4), "activation=silu"),
}  # fmt: skip
# What it refuses, although the schema has a meaning for it.
HERE = {
    "8 and 4 bits": (Experts(bits={"fc1": 4, "fc2": 8}), "activation=silu down_bits=8"),
    "concatenated": (Experts(fusion=2, biases=True), "activation=silu"),
    "swiglu of two tensors": (Experts(fusion=0, fc3=True, biases=True, attributes=GPT_OSS),
                              "activation=swiglu alpha=1.702 beta=1 limit=1.5"),
    "geglu": (Experts(activation="geglu"), "activation=gelu_tanh"),
    "fp4": (Experts(biases=True, fp4=True), "activation=silu type=mxfp4 down_type=mxfp4"),
    "limit after activation": (
        Experts(attributes={"swiglu_limit": 0.5, "swiglu_limit_after_activation": 1}),
        "activation=swiglu alpha=1 beta=0 limit=0.5 limit_after=1"),
}  # fmt: skip
SIZED = "experts={} top_k={}"


def taken() -> Iterator[Entry]:
    for cases, runs in ((TAKEN, True), (HERE, False)):
        for name, (case, given) in cases.items():
            places = {place for place, _ in build(case).inputs.items()}
            reads = ["x", "router", "*", "*", "*" if case.fused or case.fc3 else "-"]
            if case.biases:
                reads += ["*", "*" if case.fused or case.fc3 else "-", "*"]
            if case.router_weights:
                reads += ["-"] * (8 - len(reads)) + ["chosen"]
            assert places
            while reads[-1] == "-":
                reads.pop()
            becomes = (
                f"Q4NXMoE {' '.join(reads)} -> y {given} {SIZED.format(case.experts, case.top_k)}"
            )
            since = (1, 32) if name in ("limit after activation", "fp4") else (1, 31)
            yield entry(f"experts: {name}", case, becomes, runs=runs, since=since)


def two() -> Iterator[Entry]:
    case = Experts()
    graph = text(case)
    graph += "\n" + graph.replace("y =", "z =").replace("fc1_scales", "more")
    plain = f"activation=silu {SIZED.format(4, 2)}"
    scales = dict(build(case).inputs.values())["fc1_scales"]
    yield entry("experts with the same codes and other scales", case,
                f"Q4NXMoE x router * * * -> y {plain}\nQ4NXMoE x router * * * -> z {plain}",
                {"more": scales * np.float32(2)}, graph=graph, alike=False)  # fmt: skip


def routers() -> Iterator[Entry]:
    case = Experts()
    flat: dict[str, Given] = {"two": np.array([-1, case.experts]),
                              "router": ["batch", "sequence", case.experts]}  # fmt: skip
    feeds = {"router": lambda s: logits(case.experts, s["tokens"])[None]}
    joined = steps("flat = Reshape(router, two)", text(case, "flat"))
    plain = f"Q4NXMoE x router * * * -> y activation=silu {SIZED.format(4, 2)}"
    yield entry("a Reshape that joins batch and sequence goes", case, plain, flat, graph=joined,
                feeds=feeds)  # fmt: skip
    rows = plain.replace("x router", "x flat")
    yield entry("rows that something else reads stay rows", case, f"Reshape\n{rows}", flat,
                graph=joined, wanted=("flat",), feeds=feeds)  # fmt: skip
    for shape in (["sequence", "batch", 4], ["batch", "sequence", 2, 2], ["batch", 4, "sequence"],
                  ["batch", "sequence", "experts"], ["tokens", 4]):  # fmt: skip
        yield entry(f"a Reshape of {shape} stays", case, f"Reshape\n{rows}",
                    flat | {"router": shape},
                    graph=joined, runs=False)  # fmt: skip


# As the model builder writes LFM2's: sigmoids and a bias choose, and the sigmoids alone weight.
SCORES = "n = Neg(rows); e = Exp(n); d = Add(e, one); s = Reciprocal(d)"
CHOICE = "c = Add(s, bias); v, at = TopK<axis=-1>(c, two_of)"
GIVEN = (
    "p = GatherElements<axis=1>(s, at); f = Clip(p, floor, -); l = Log(f); z = Shape(s)\n"
    "low = ConstantOfShape<value=-1e4>(z); given = ScatterElements<axis=1>(low, at, l)"
)
SCALE = (
    "t = ReduceSum<keepdims=1>(p, last); m = Add(t, epsilon); q = Div(t, m); g = Mul(q, factor)\n"
    "xs = Shape(x); lead = Slice(xs, zero, last); dims = Concat<axis=0>(lead, ones)\n"
    "col = Reshape(g, dims)"
)
ROUTED: dict[str, Given] = {
    "router": ["batch", "sequence", 8], "flat": np.array([-1, 8]), "two_of": np.array([2]),
    "bias": np.array([0.4, -0.3, 0.1, 0, 0.2, -0.5, 0.3, 0.3], np.float32),
    "last": np.array([-1]), "zero": np.array([0]), "ones": np.array([1]),
    **{name: np.float32(value) for name, value in
       (("one", 1), ("floor", 1e-30), ("epsilon", 1e-6), ("factor", 2.5))},
}  # fmt: skip
# Rows of which two experts have the same score, of large ones and of ones that vanish.
ROUTES = np.array([
    [0, 1, -1, 2, -2, 3, 0.5, 0.5], [40] * 8, [-30, -31, -32, -33, -34, -35, -36, -37],
    [-200] * 8, [3, -3, 2, -2, 1, -1, 0, -200],
], np.float32)  # fmt: skip


def sigmoid_routers() -> Iterator[Entry]:
    case = Experts(experts=8)
    moe = text(case, "given").replace("y =", "sum =")
    declared: dict[str, list[int | str]] = {
        "rows": ["tokens", 8], "s": ["tokens", 8], "c": ["tokens", 8],
        "sum": ["batch", "sequence", case.hidden], "col": ["batch", "sequence", 1],
    }  # fmt: skip
    feeds = {"router": lambda s: ROUTES[None, : s["tokens"]]}
    plain = f"{SIZED.format(8, 2)} activation=silu scores=sigmoid epsilon=1e-06"
    whole = steps("rows = Reshape(router, flat)", SCORES, CHOICE, GIVEN, SCALE, moe,
                  "y = Mul(sum, col)")  # fmt: skip

    def of(name: str, graph: str, becomes: str, given: Mapping[str, Given] = {}) -> Entry:
        return entry(f"a router of sigmoids {name}", case, becomes, ROUTED | dict(given),
                     graph=graph, feeds=feeds, declared=declared, unread=("v",))  # fmt: skip

    reads = "Q4NXMoE x router * * * - - - -"
    yield of("with a bias", whole, f"{reads} bias -> y {plain} factor=2.5")
    yield of("without a bias", whole.replace("c = Add(s, bias); ", "").replace("(c, ", "(s, "),
             f"{reads[:-8]} -> y {plain} factor=2.5")  # fmt: skip
    turned = whole.replace("Add(e, one)", "Add(one, e)").replace("Add(s, bias)", "Add(bias, s)")
    turned = turned.replace("(sum, col)", "(col, sum)").replace("(t, epsilon)", "(epsilon, t)")
    turned = turned.replace("; g = Mul(q, factor)", "").replace("(g, ", "(q, ")
    yield of("with operands in the other order", turned, f"{reads} bias -> y {plain}")
    half = Experts(experts=8, dtype=np.dtype(np.float16))
    casts = whole
    for plain_form, cast_form in (
        ("n = Neg(rows)", "wide = Cast<to=1>(rows); n = Neg(wide)"), ("given =", "masked ="),
        ("t = Red", "given = Cast<to=10>(masked); t = Red"), ("col =", "wider ="),
        ("(g, dims)", "(g, dims); col = Cast<to=10>(wider)"),
    ):  # fmt: skip
        casts = casts.replace(plain_form, cast_form)
    floats = dict.fromkeys(("wide", "s", "c", "wider"), np.float32)
    yield replace(
        entry("a router of sigmoids in float16", half, f"{reads} bias -> y {plain} factor=2.5",
              ROUTED, graph=casts, declared=declared | {"wider": declared["col"]}, unread=("v",),
              feeds={"router": lambda s: ROUTES[None, : s["tokens"]].astype(np.float16)}),
        types=floats,
    )  # fmt: skip
    stays = f"...\nQ4NXMoE x given * * * -> sum {SIZED.format(8, 2)} activation=silu\nMul"
    for name, graph, given in (
        ("of smaller ones", whole.replace("<axis=-1>(c,", "<axis=-1, largest=0>(c,"), {}),
        ("of three", whole, {"two_of": np.array([3])}),
        ("above others", whole.replace("-1e4", "-50.0"), {}),
        ("that something else reads", whole, {}),
    ):  # fmt: skip
        found = of(f"{name} stays", graph, stays, given)
        yield replace(found, runs=False, wanted=("p",) if "else" in name else ())
    # As for DeepSeek-V3 and GLM-4.5, with what QMoE has for it.
    with_weights = Experts(experts=8, router_weights=True,
                           attributes={"normalize_routing_weights": 1})  # fmt: skip
    yield entry(
        "a router of sigmoids as QMoE has it", with_weights,
        steps("Reshape router -> rows sizes=-1,8", "Activation rows -> s function=sigmoid",
              "Add s bias -> c",
              f"Q4NXMoE x c * * * - - - s -> m {SIZED.format(8, 2)} activation=silu normalize=1",
              "Mul m factor -> y"),
        ROUTED,
        graph=steps("rows = Reshape(router, flat)", "s = Sigmoid(rows); c = Add(s, bias)",
                    text(with_weights, "c").replace("y =", "m =").replace("chosen", "s"),
                    "y = Mul(m, factor)"),
        feeds={"router": lambda s: ROUTES[None, [0, 4, 0, 4, 0][: s["tokens"]]]},
        declared=declared | {"m": declared["sum"]},
    )  # fmt: skip


# --- what stays -----------------------------------------------------------------------------------

OTHER_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "activation_alpha": ({"activation_alpha": 0.0}, "activation_alpha=0"),
    "activation_type": ({"activation_type": "relu2"}, "activation_type=relu2"),
    "block_size": ({"block_size": 16}, "block_size is 16"),
    "expert_weight_bits": ({"expert_weight_bits": 3}, "fc1 has 3 bits"),
    "fc1_expert_weight_bits": ({"fc1_expert_weight_bits": 3}, "fc1 has 3 bits"),
    "fc2_expert_weight_bits": ({"fc2_expert_weight_bits": 3}, "fc2 has 3 bits"),
    "k": ({"k": 5}, "k=5; expected 1 to 4"),
    "quant_type": ({"quant_type": "nvfp4"}, "quant_type=nvfp4"),
    "swiglu_fusion": ({"swiglu_fusion": 3}, "swiglu_fusion=3"),
    "weights_prepacked": ({"weights_prepacked": 1}, "weights_prepacked=1"),
}
OTHER_FORMATS = (
    "fc1_global_scale", "fc2_global_scale", "fc1_act_scale", "fc2_act_scale",
    "fc1_act_block_scale", "fc2_act_block_scale",
)  # fmt: skip


def left() -> Iterator[Entry]:
    def of(why: str, case: Experts, given: Mapping[str, Given] = {}, graph: str = "") -> Entry:
        name = f"experts stay: {why} {sorted(given)}"
        return replace(entry(name, case, "QMoE", given, graph=graph, runs=False), why={"y": why},
                       opens=False, provider="3 bits" not in why)  # fmt: skip

    for name, (given, why) in OTHER_VALUES.items():
        yield replace(of(why, Experts(attributes=given)), name=f"experts stay for their {name}")
    for place, name in enumerate(OTHER_FORMATS, 15):
        case = Experts(biases=True)
        yield of(f"its input {name} belongs to other formats", case,
                 graph=text(case, more={place: "fc2_bias"}))  # fmt: skip
    for case, why in (
        (Experts(fc3=True), "it has fc3 beside swiglu_fusion=1"),
        (Experts(fusion=0), "activation_type=swiglu with swiglu_fusion=0 needs fc3"),
        (Experts(activation="geglu", fusion=0, fc3=True),
         "activation_type=geglu with swiglu_fusion=0 is not defined"),
        (Experts(activation="silu", fusion=0, fc3=True, bits={"fc1": 4, "fc2": 4, "fc3": 2}),
         "fc3 has 2 bits, but fc1 has 4"),
    ):  # fmt: skip
        yield of(why, case)
    case = Experts(biases=True, zero_points=True)
    arrays = build(case).inputs
    both = "fc1's or fc2's weights are not constant"
    for place, why in (
        (2, both), (3, "fc1's scales are not constant"), (4, "fc1's biases are not constant"),
        (5, both), (12, "fc2's zero points are not constant"),
    ):  # fmt: skip
        name, array = arrays[place]
        yield of(why, case, {name: [array.dtype.type, *array.shape]})
    for place in (2, 3, 4, 5, 6, 7, 11, 12):
        name, array = arrays[place]
        fc = "fc2" if place in PLACES["fc2"] else "fc1"
        yield of(f"{fc}" if place != 2 else "", case, {name: array[..., :-1]})
    plain = text(Experts())
    yield of("fc1's scales are missing", Experts(), graph=plain.replace("fc1_scales", "-"))
    case = Experts(fp4=True)
    yield of("fc2's global scale is missing", case,
             graph=text(case).replace(", fc2_global_scale", ""))  # fmt: skip
    yield of("fc1 has zero points beside quant_type=fp4", case, graph=text(case, more={11: "fc2"}))


ENTRIES = [*taken(), *two(), *routers(), *sigmoid_routers(), *left()]
