"""The performance model's predictions for a session, compared with the session on the modelled
NPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from op_models import session_options

import ort_aie_ep
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.prediction.compiled import read_plans
from ort_aie_ep.prediction.composition import compose
from ort_aie_ep.runtime.counters import NpuCounters, npu_counters
from ort_aie_ep.tools.synth import synth

pytestmark = pytest.mark.skipif(
    not Path(ort_aie_ep.library_path()).with_name("libort_aie_sim.so").is_file(),
    reason="built without XRT's headers",
)
PROMPT, CAPACITY = 5, 16


@pytest.fixture(autouse=True)
def overlays(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))


def difference(before: NpuCounters, after: NpuCounters) -> dict[str, Any]:
    hosts = {
        reason: count - before.host_steps.get(reason, 0)
        for reason, count in after.host_steps.items()
        if count != before.host_steps.get(reason, 0)
    }
    return {
        "submissions": after.submissions - before.submissions,
        "runs": after.runs - before.runs,
        "device_steps": after.device_steps - before.device_steps,
        "host_steps": hosts,
    }


def calls(folder: Path, tokens: list[int]) -> list[dict[str, Any]]:
    """Counters of a session's calls, with the given number of new tokens each."""
    options = session_options()
    options.register_custom_ops_library(str(ort_aie_ep.library_path()))
    options.add_session_config_entry("ort_aie.target", "sim")
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    decoder = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    # With room for all tokens: a cache that keeps a window has its final size from the start.
    shape = (1, decoder["num_key_value_heads"], CAPACITY, decoder["head_size"])
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    cache: dict[str, Any] = {
        i.name: np.zeros(shape, types[i.type])
        for i in session.get_inputs()
        if i.name.startswith("past")
    }
    names = [o.name for o in session.get_outputs()]
    wanted = {i.name for i in session.get_inputs()}
    found, seen = [], 0
    for count in tokens:
        seen += count
        feeds = {
            "input_ids": np.full((1, count), 7, np.int64),
            "attention_mask": np.ones((1, seen), np.int64),
            "position_ids": np.arange(seen - count, seen, dtype=np.int64)[None],
            **cache,
        }
        before = npu_counters()
        outputs = dict(
            zip(names, session.run(None, {n: v for n, v in feeds.items() if n in wanted}),
                strict=True)
        )  # fmt: skip
        after = npu_counters()
        assert after.fallbacks == before.fallbacks
        found.append(difference(before, after))
        cache = {
            n.replace("present", "past_key_values"): v
            for n, v in outputs.items()
            if n.startswith("present")
        }
    return found


def predicted(folder: Path, tokens: list[int]) -> list[dict[str, Any]]:
    plans = read_plans(folder).plans
    found, seen = [], 0
    for count in tokens:
        seen += count
        composed = compose(plans, count, seen, one_xclbin=False)
        found.append({
            "submissions": composed.submissions, "runs": composed.timing.runs,
            "device_steps": composed.device_steps, "host_steps": composed.host_steps,
        })  # fmt: skip
    return found


SMALL = {"hidden": 256, "ffn": 512, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 512}
FAMILIES = {
    "llama": replace(SHAPES["llama-3.2-1b"], **{**SMALL, "layers": 1}),
    "qwen3": replace(SHAPES["qwen3-0.6b"], **{**SMALL, "layers": 1}),
    "gemma3": replace(SHAPES["gemma3-1b"], **SMALL, window=4, global_every=2),
    "heads of 32": replace(SHAPES["llama-3.2-1b"], **{**SMALL, "heads": 8, "head_dim": 32}),
    "heads of 96": replace(
        SHAPES["llama-3.2-1b"], **{**SMALL, "heads": 8, "kv_heads": 8, "head_dim": 96}
    ),
}


# The products of a prompt take most of the simulator's time; those of qwen3 end with all logits.
@pytest.mark.parametrize(
    ("family", "prompt"),
    [
        ("llama", 3),
        *(
            pytest.param(*other, marks=pytest.mark.in_turn)
            for other in (("qwen3", 3), ("gemma3", 1), ("heads of 32", 1), ("heads of 96", 1))
        ),
    ],
)
def test_a_session_makes_the_predicted_runs_and_submissions(
    family: str, prompt: int, tmp_path: Path
) -> None:
    model = synth(FAMILIES[family], tmp_path / "model")
    ort_aie_ep.compile(model, tmp_path / "compiled", last_logits=family != "qwen3")
    tokens = [prompt, 1, 1]
    counted = calls(tmp_path / "compiled", tokens)
    assert counted == predicted(tmp_path / "compiled", tokens)
    assert [call["submissions"] for call in counted[1:]] == [1, 1]


@pytest.mark.in_turn
def test_a_session_on_weights_that_stay_floats_is_as_predicted(tmp_path: Path) -> None:
    model = synth(FAMILIES["llama"], tmp_path / "model", int4=False)
    ort_aie_ep.compile(model, tmp_path / "compiled", quantize="bf16")
    counted = calls(tmp_path / "compiled", [3, 1])
    assert counted == predicted(tmp_path / "compiled", [3, 1])
    assert "a single row of an unquantised projection" in counted[1]["host_steps"]


@pytest.mark.in_turn
@pytest.mark.parametrize("plan", [True, False])
def test_a_plan_is_divided_as_predicted(plan: bool, tmp_path: Path) -> None:
    # The host prepares heads of 48 dimensions, all rotated; without a plan each node is a plan.
    model = synth(replace(FAMILIES["llama"], head_dim=48), tmp_path / "model")
    ort_aie_ep.compile(model, tmp_path / "compiled", plan=plan)
    tokens = [PROMPT, 1]
    counted = calls(tmp_path / "compiled", tokens)
    assert counted == predicted(tmp_path / "compiled", tokens)
    assert counted[1]["submissions"] > 1
