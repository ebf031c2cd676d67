"""Options of a session, by config entry and by environment, and the choice of instruction set."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
from op_models import ORT_VERSION
from projection_calls import Array, Weights, activations, make_weights, project

import ort_aie_ep
from ort_aie_ep import _native

NUMERICS_NEED_1_24 = pytest.mark.skipif(
    ORT_VERSION < (1, 24), reason="custom ops read session config entries from 1.24 on"
)


def numerics_of(w: Weights, a: Array, y: Array) -> str:
    """The numerics that gave y, found by comparing with the results of each."""
    references = {
        "bf16": project(w, a, accuracy_level=0),
        "int8": project(w, a, accuracy_level=4),
    }
    assert (references["bf16"] != references["int8"]).any()
    (name,) = (name for name, x in references.items() if np.array_equal(x, y))
    return name


@pytest.mark.parametrize(
    ("option", "level", "expected"),
    [
        ("bf16", 4, "bf16"),
        ("int8", 0, "int8"),
        ("auto", 0, "bf16"),
        ("auto", 1, "bf16"),
        ("auto", 4, "int8"),
    ],
)
@NUMERICS_NEED_1_24
def test_numerics_by_session_config(option: str, level: int, expected: str) -> None:
    w, a = make_weights(40, 320), activations(1, 320)
    y = project(w, a, accuracy_level=level, config={"ort_aie.numerics": option})
    assert numerics_of(w, a, y) == expected


@pytest.mark.parametrize(("option", "level"), [("bf16", 4), ("int8", 0)])
def test_numerics_by_environment(option: str, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w, a = make_weights(40, 320), activations(1, 320)
    with monkeypatch.context() as patch:
        patch.setenv("ORT_AIE_NUMERICS", option)
        y = project(w, a, accuracy_level=level)
    assert numerics_of(w, a, y) == option


@NUMERICS_NEED_1_24
def test_session_config_outranks_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    w, a = make_weights(40, 320), activations(1, 320)
    with monkeypatch.context() as patch:
        patch.setenv("ORT_AIE_NUMERICS", "int8")
        y = project(w, a, config={"ort_aie.numerics": "bf16"})
    assert numerics_of(w, a, y) == "bf16"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("numerics", "fp4", "ort_aie.numerics=fp4 is unknown; expected auto, bf16 or int8"),
        ("target", "gpu", "ort_aie.target=gpu is unknown; expected auto, host, xrt or sim"),
        (
            "on_device_error",
            "stop",
            "ort_aie.on_device_error=stop is unknown; expected host or rai",
        ),
        ("log", "loud", "ort_aie.log=loud is unknown; expected warning, quiet or trace"),
        ("weights", "huge", "ort_aie.weights=huge is unknown; expected auto, mapped or copied"),
        ("prompt_logits", "first", "ort_aie.prompt_logits=first is unknown; expected all or last"),
        ("tune", "no", "ort_aie.tune=no is unknown; expected on or off"),
        ("prompt_chunk", "0", "ort_aie.prompt_chunk=0 is not a number of tokens; expected 1 to"),
        ("prompt_chunk", "-1", "ort_aie.prompt_chunk=-1 is not a number of tokens"),
        ("prompt_chunk", "2k", "ort_aie.prompt_chunk=2k is not a number of tokens"),
        ("prompt_chunk", "1000000000", "ort_aie.prompt_chunk=1000000000 is not a number of tokens"),
        ("prompt_chunk", "9" * 20, f"ort_aie.prompt_chunk={'9' * 20} is not a number of tokens"),
    ],
)
@pytest.mark.parametrize("way", ["config", "environment"])
def test_unknown_options_are_named(
    name: str, value: str, message: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "config" and ORT_VERSION < (1, 24):
        pytest.skip("custom ops read session config entries from 1.24 on")
    w, a = make_weights(40, 320), activations(1, 320)
    config = {f"ort_aie.{name}": value} if way == "config" else None
    with monkeypatch.context() as patch:
        if way == "environment":
            patch.setenv(f"ORT_AIE_{name.upper()}", value)
        with pytest.raises(Exception, match=f"Q4NXMatMul node 'the_node': {message}"):
            project(w, a, config=config)
    assert np.isfinite(project(w, a)).all()  # a good session still works afterwards


UNKNOWN = "option 'numeric' is unknown, the nearest is 'numerics'; expected one of target, numerics"


@NUMERICS_NEED_1_24
def test_an_unknown_option_is_named_with_the_nearest() -> None:
    w, a = make_weights(40, 320), activations(1, 320)
    with pytest.raises(Exception, match=f"Q4NXMatMul node 'the_node': {UNKNOWN}"):
        project(w, a, config={"ort_aie.numeric": "bf16"})


def test_an_unknown_option_is_named_when_the_library_is_registered() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("ort_aie.numeric", "bf16")
    with pytest.raises(Exception, match=UNKNOWN):
        options.register_custom_ops_library(ort_aie_ep.library_path())


@pytest.mark.parametrize("isa", _native.available_isas())
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    script = "from ort_aie_ep import _native; print(_native.selected_isa())"
    environment = {"ORT_AIE_ISA": isa}
    assert subprocess_output(script, environment) == (isa, "")


def test_an_unknown_instruction_set_is_reported_and_ignored() -> None:
    script = "from ort_aie_ep import _native; print(_native.selected_isa())"
    output, errors = subprocess_output(script, {"ORT_AIE_ISA": "sse9"})
    chosen, _ = subprocess_output(script, {"ORT_AIE_ISA": ""})
    assert output == chosen
    assert errors == f"ort_aie_ep: ORT_AIE_ISA=sse9 is not available on this CPU; using {chosen}"


def subprocess_output(script: str, environment: dict[str, str]) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr.strip()
