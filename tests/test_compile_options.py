"""`CompileOptions`: the API, the command line and `help()` have what it declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from model_folders import DATA
from typer.main import get_command

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.compiler.fastflowlm import import_q4nx
from ort_aie_ep.compiler.options import CompileOptions, GraphOptions
from ort_aie_ep.errors import AieError

CALLS = [
    (ort_aie_ep.compile, CompileOptions),
    (ort_aie_ep.session, CompileOptions),
    (import_q4nx, GraphOptions),
]
COMMANDS = [("compile", CompileOptions), ("import-q4nx", GraphOptions)]


@pytest.mark.parametrize(("call", "kind"), CALLS)
def test_help_of_a_function_shows_each_option_and_its_default(
    call: Callable[..., Any], kind: type[GraphOptions]
) -> None:
    shown = inspect.signature(call).parameters
    assert {each.name: shown[each.name].default for each in fields(kind)} == {
        each.name: each.default for each in fields(kind)
    }
    assert "'q2nx'" in str(inspect.signature(ort_aie_ep.compile))


@pytest.mark.parametrize(("command", "kind"), COMMANDS)
def test_a_command_has_each_option_with_a_help(command: str, kind: type[GraphOptions]) -> None:
    params = get_command(app).commands[command].params  # type: ignore[attr-defined]
    helps = {param.opts[0]: param.help for param in params if param.opts[0].startswith("--")}
    for each in fields(kind):
        flag = f"--{'no-' * (each.default is True)}{each.name.replace('_', '-')}"
        text = helps[flag]
        assert text[0].isupper()
        assert text.endswith(".")
        assert "`" not in text
    assert helps["--no-plan"].startswith("Write a node for each step")


def test_paths_and_patterns_may_be_written_as_python_has_them(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("text")
    asked = {"importance": str(text), "keep": ["a", "b*"], "quantize": "q4nx"}
    options = CompileOptions.of(**asked)
    assert options == CompileOptions(importance=text, keep=("a", "b*"), quantize="q4nx")
    assert options.given == {"quantize": "q4nx", "importance": str(text), "keep": ("a", "b*")}
    assert CompileOptions().given == {}
    with pytest.raises(FrozenInstanceError):
        options.kv = "f16"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv": "f8"}, "kv is 'f8'; expected one of f16, bf16, int8, int4"),
        ({"quantize": "q4nx", "keep": "/lm_head/*"}, r"keep is '/lm_head/\*'; expected a list"),
        ({"keep": ["a"]}, "keep names nodes that quantize leaves alone: pass quantize as well"),
        ({"kv": "int8", "calibration": "absent.npy"}, "token ids absent.npy cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_before_the_model_is_read(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for call in (lambda: ort_aie_ep.compile("nowhere", tmp_path / "out", **given),
                 lambda: ort_aie_ep.session("nowhere", cache_dir=tmp_path, **given)):  # fmt: skip
        with pytest.raises(AieError, match=message):
            call()


def test_a_session_refuses_an_option_that_is_for_whole_folders(tmp_path: Path) -> None:
    with pytest.raises(AieError, match=r"genai_config\.json"):
        ort_aie_ep.session(DATA / "llama", cache_dir=tmp_path, vision="bf16")


def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'kvs'"):
        ort_aie_ep.compile("nowhere", "out", kvs="f16")  # type: ignore[call-arg]
