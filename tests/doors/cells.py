"""The cells of the table of doors: a model opened by a door, and what the page says of it.

A cell's text is the number of plans or, where a host does not tell, "yes"; on the modelled NPU it
is the submissions of a token and of a prompt. It stands for: the model opens, and its logits are
ONNX Runtime's within the tolerance of `Made.error`, or have the bits of the first door's, or its
texts are those of the first door. A token differs from ONNX Runtime's only where logits are nearer
to each other than that tolerance.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cmake_program import SOURCE, example_program
from model_folders import edited
from op_models import ORT_VERSION
from provider_calls import provider_session, registered_in_genai
from rows import (
    CAPACITY,
    LENGTHS,
    NEW,
    ON_SIM,
    PROMPTS,
    ROWS,
    Array,
    Made,
    Row,
    greedy,
    logits,
    prompt,
)

import ort_aie_ep
from ort_aie_ep import _native, npu_counters
from ort_aie_ep.models.folder import GENAI_CONFIG, ModelFolder, find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.provider import NAME
from ort_aie_ep.runtime.sessions import Options, open_session

BF16 = {"ort_aie.numerics": "bf16"}


def same_bits(actual: Array, expected: Array) -> None:
    np.testing.assert_array_equal(actual, expected)


def near(made: Made, actual: Array, times: float = 1, lengths: tuple[int, ...] = LENGTHS) -> None:
    error = made.error(actual, lengths)
    assert error <= times, f"logits are off by {error:.2f} of what bf16 may be, more than {times}"


def by_operators(made: Made, numerics: str = "bf16") -> Array:
    options = Options(numerics=numerics)
    return logits(open_session(made.compiled.model, options), made.compiled.path)


def custom_op_library(made: Made) -> str:
    near(made, by_operators(made))
    if not made.from_file and "quantize" not in made.row.options:
        # accuracy_level 4's error, plus the rounding of weights.
        near(made, by_operators(made, "int8"), 2)
    return plans_in(made.compiled.model, "Plan")


def plans_in(model: Path, kind: str) -> str:
    """How many nodes of a kind are in place of everything with weights or a cache."""
    graph = onnx.load(model, load_external_data=False).graph
    found = Counter(node.op_type for node in graph.node)
    assert not {"MatMulNBits", "GroupQueryAttention", "GatherBlockQuantized", "QMoE"} & set(found)
    assert {node.op_type for node in graph.node if node.domain == "aie"} <= {kind}
    return str(found[kind])


def provider(made: Made) -> str:
    source = made.compiled if made.from_file else find_model(made.source)
    context = made.work / "none.onnx" if made.from_file else None
    session = provider_session(source.model, entries=BF16, context=context)
    found = logits(session, source.path)
    if made.row.maker.startswith(("optimum", "mobius")):
        near(made, found)
    else:
        same_bits(found, by_operators(made))
    if context is not None:  # the operators of a compiled model, without a registered library
        assert not context.exists()
        return "yes"
    parts = session.get_provider_graph_assignment_info()
    return str(sum(part.ep_name == NAME for part in parts))


def context_file(made: Made) -> str:
    path = made.work / "context.onnx"
    source = find_model(made.source)
    first = provider_session(source.model, entries=BF16, context=path)
    again = provider_session(path, entries=BF16)
    same_bits(logits(again, source.path), logits(first, source.path))
    return plans_in(path, "EPContext")


def first_text(made: Made, length: int = PROMPTS[0]) -> list[int]:
    return greedy(open_session(made.compiled.model), made.compiled, length)


def genai_texts(made: Made, folder: Path) -> list[list[int]]:
    """Of each prompt, up to the token that ends it."""
    import onnxruntime_genai as og

    model, texts = og.Model(str(folder)), []
    for length in PROMPTS:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=CAPACITY, do_sample=False)
        generator = og.Generator(model, params)
        generator.append_tokens(prompt(made.config["vocab_size"], length))
        while not generator.is_done() and generator.token_count() < length + NEW:
            generator.generate_next_token()
        texts.append([int(token) for token in generator.get_sequence(0)][length:])
    return texts


def same_texts(made: Made, texts: list[list[int]]) -> str:
    for length, text in zip(PROMPTS, texts, strict=True):
        assert text == first_text(made, length)[: len(text)]
        assert len(text) == NEW or text[-1] == made.config["eos_token_id"]
    return "yes"


def genai(made: Made) -> str:
    """The compiled folder, and the source with the provider."""
    import onnxruntime_genai as og

    same_texts(made, genai_texts(made, made.compiled.path))
    if made.from_file or "quantize" in made.row.options:
        return "yes"
    with edited(made.source / GENAI_CONFIG) as config:
        options = config["model"]["decoder"].setdefault("session_options", {})
        options["provider_options"] = [{NAME: {}}]
    with registered_in_genai(og):
        texts = genai_texts(made, made.source)
    return same_texts(made, texts)


OPTIMUM = Path(sys.prefix) / "optimum" / "bin" / "python"


@cache
def optimum_host() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [OPTIMUM, Path(__file__).with_name("optimum_host.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def optimum(made: Made) -> str:
    vocabulary = json.loads((made.compiled.path / "config.json").read_text())["vocab_size"]
    host = optimum_host()
    assert host.stdin is not None
    assert host.stdout is not None
    asked = {"folder": str(made.compiled.path), "library": ort_aie_ep.library_path(),
             "prompt": prompt(vocabulary), "new": NEW}  # fmt: skip
    print(json.dumps(asked), file=host.stdin, flush=True)
    assert json.loads(host.stdout.readline()) == first_text(made)
    return "yes"


def cpp_output(made: Made, door: str, folder: ModelFolder) -> list[str]:
    program, config = example_program(made.work.parent / "example"), made.config
    command = [program, door, ort_aie_ep.library_path(), folder.model,
               config["decoder"]["head_size"], NEW, *prompt(config["vocab_size"])]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def cpp(made: Made) -> str:
    (line,) = cpp_output(made, "ops", made.compiled)
    assert list(map(int, line.split())) == first_text(made)
    if made.from_file:
        return "yes"
    line, nodes = cpp_output(made, "provider", find_model(made.source))
    assert list(map(int, line.split())) == first_text(made)
    assert int(nodes) > 0
    return "yes"


# --- the modelled NPU ---


@cache
def overlays(folder: Path) -> str:
    """The modelled NPU's packages, all in one xclbin."""
    from ort_aie_ep.aie_kernels.build import designs_on
    from ort_aie_ep.npu.packages.simulated import write_simulated_packages
    from ort_aie_ep.npu.terms.device import device
    from ort_aie_ep.prediction.composition import OVERLAYS

    designs = designs_on(device("npu2"))
    write_simulated_packages(folder, {name: designs[name] for name in OVERLAYS & designs.keys()})
    return str(folder)


def on_sim(session: Any, folder: ModelFolder) -> tuple[Array, str]:
    """Logits of ON_SIM, and the submissions of a token and of the prompt."""
    decoder = Decoder(session, folder, sum(ON_SIM))
    rng, parts, submissions = np.random.default_rng(7), [], []
    for count in ON_SIM:
        before = npu_counters()
        parts.append(decoder.forward(rng.integers(3, decoder.vocabulary, count)))
        after = npu_counters()
        assert after.fallbacks == before.fallbacks
        submissions.append(after.submissions - before.submissions)
    first, *tokens = submissions
    assert len(set(tokens)) == 1, submissions
    return np.concatenate(parts), f"{tokens[0]} / {first}"


def library_on_sim(made: Made) -> str:
    """Prompts are multiplied as bfp16: each of both operands is off by at most half of 2^-6 of the
    largest of eight, on average two thirds of that, where accuracy_level 4 rounds one operand by
    half of 2^-7 of the largest of 32: twice as far off, and by half of it again for rows that go
    between operators as bfloat16. The provider and its context file give the same bits."""
    folder = overlays(made.work.parent / "overlays")
    options = Options(target="sim", numerics="bf16", overlays=folder)
    found, submissions = on_sim(open_session(made.for_npu.model, options), made.for_npu)
    near(made, found, 3, ON_SIM)
    if made.row.maker == "builder" and made.row.model in EACH_DOOR_ON_SIM:
        source, context = find_model(made.source), made.work / "context of sim.onnx"
        provider_session(source.model, entries=BF16, context=context)
        for model in (source.model, context):
            session = provider_session(
                model, {"target": "sim", "numerics": "bf16", "overlays": folder}
            )
            again, counted = on_sim(session, source)
            same_bits(again, found)
            assert counted == submissions
    return submissions


# --- the table ---

# Why a door has no such model, in a word or two, by who made it and by its name.
NO_CONFIG, GROWS, STATES = "no config", "cache grows", {"C++": "states"}
NOT_BY = {
    "builder": {"optimum": NO_CONFIG},
    "Olive": {"optimum": NO_CONFIG},
    "Quark": {"optimum": NO_CONFIG},
    "mobius-onnx": {"optimum": NO_CONFIG, "C++": GROWS},
    "optimum": {"genai": NO_CONFIG, "C++": GROWS},
    "GGUF": {"context file": "packed", "optimum": NO_CONFIG},
    "floats": {"provider": "floats", "context file": "floats"},
    "Phi-4-mini": {"context file": "tables in If"},
    "Gemma 4": {"C++": "two head sizes"},
    "LFM2": STATES,
    "LFM2 MoE": STATES,
    "Qwen3.5": STATES,
}
# Some ten seconds for each.
MAKERS_ON_SIM = {"builder", "optimum", "GGUF"}
MODELS_ON_SIM = {"Llama", "Qwen3", "Gemma 3", "gpt-oss", "LFM2", "Qwen3.5"}
EACH_DOOR_ON_SIM = {"Llama", "LFM2"}


def why_not(row: Row, door: Door) -> str:
    """Why there is no such cell; empty if there is."""
    if door.target == "sim":
        return "" if row.maker in MAKERS_ON_SIM and row.model in MODELS_ON_SIM else "–"
    keys = (row.maker.split()[0], row.model, "floats" if "quantize" in row.options else "")
    return "".join(NOT_BY.get(key, {}).get(door.name, "") for key in keys)


@dataclass(frozen=True)
class Door:
    """A column of the table: its head, and what gives a cell's text, once all that it stands for
    was checked."""

    name: str
    fill: Callable[[Made], str]
    target: str = "host"

    def __str__(self) -> str:
        return self.name


DOORS = (
    Door("custom-op library", custom_op_library),
    Door("provider", provider),
    Door("context file", context_file),
    Door("genai", genai),
    Door("optimum", optimum),
    Door("C++", cpp),
    Door("`sim`", library_on_sim, "sim"),
)


def missing(row: Row, door: Door) -> str:
    """What a cell of the table needs and is not here."""
    headers = int(re.findall(r"ORT_API_VERSION (\d+)", _native.ONNXRUNTIME_HEADERS)[0])
    simulator = Path(ort_aie_ep.library_path()).with_name("libort_aie_sim.so")
    is_here = {
        "an ONNX Runtime with the model's operators": row.since <= ORT_VERSION,
        "gguf": row.maker != "GGUF" or find_spec("gguf.gguf_reader"),
        "ONNX Runtime 1.24": door.fill in (custom_op_library, genai) or ORT_VERSION >= (1, 24),
        "onnxruntime-genai": door.fill is not genai or find_spec("onnxruntime_genai"),
        "optimum (make .venv/optimum/ready)": door.fill is not optimum or OPTIMUM.is_file(),
        "a build with headers of ONNX Runtime 1.24": door.fill is not cpp or headers >= 24,
        "a build with XRT's headers": door.target == "host" or simulator.is_file(),
    }
    return next((f"needs {what}" for what, here in is_here.items() if not here), "")


PAGE = SOURCE / "docs" / "status.md"
TABLE = re.compile(r"^\| model \| made by \|.*\n(?:\|.*\n)+", re.M)
Table = dict[tuple[str, str], list[str]]


def on_the_page() -> Table:
    """The cells of each row, by model and maker."""
    found = TABLE.search(PAGE.read_text())
    assert found is not None, f"{PAGE} has no table of doors"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[0].splitlines()]
    assert rows[0][2:] == [door.name for door in DOORS]
    return {
        (model, maker): cells
        for models, makers, *cells in rows[2:]
        for model in models.split(", ")
        for maker in makers.split(", ")
    }


def as_markdown(table: Table) -> str:
    """The page's table, where one line has all models of a maker with the same cells, and all
    makers of these models."""
    models: dict[tuple[str, ...], list[str]] = {}
    for (model, maker), cells in table.items():
        models.setdefault((maker, *cells), []).append(model)
    makers: dict[tuple[str, ...], list[str]] = {}
    for (maker, *cells), names in models.items():
        makers.setdefault((", ".join(names), *cells), []).append(maker)
    heads = ["model", "made by", *(door.name for door in DOORS)]
    lines = [[names, ", ".join(by), *cells] for (names, *cells), by in makers.items()]
    rows = [heads, ["---"] * len(heads), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


# --- tests ---

MADE: dict[Row, Made] = {}


def parameters(target: str, each_time: Callable[[Row, Door], bool]) -> list[Any]:
    """The cells of a target, some of which are tested with each change."""
    return [
        pytest.param(
            row, door, id=f"{row}, {door}",
            marks=[] if each_time(row, door) else [pytest.mark.in_turn],
        )
        for row in ROWS for door in DOORS if door.target == target and not why_not(row, door)
    ]  # fmt: skip


def check(row: Row, door: Door, folders: pytest.TempPathFactory) -> None:
    """Fills a cell, which must be what the page says; a row's files are made once."""
    if reason := missing(row, door):
        pytest.skip(reason)
    if row not in MADE:
        MADE[row] = Made(row, folders.getbasetemp() / "doors" / str(row))
        MADE[row].work.mkdir(parents=True)
    assert door.fill(MADE[row]) == on_the_page()[row.model, row.maker][DOORS.index(door)]
