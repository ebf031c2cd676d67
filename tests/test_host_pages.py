"""The code on the pages in docs/hosts is the code in examples/, and runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.runtime.provider import place

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "hosts").glob("*.md"))
EXAMPLES = ROOT / "examples"
DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"
PROMPT = "def main(argv):"

pytestmark = pytest.mark.skipif(not PAGES, reason="the pages are not here")


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, code) of each block in a language."""
    return [
        (page.name, code)
        for page in PAGES
        for code in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)
    ]


def test_whole_programs_on_the_pages_are_the_examples() -> None:
    shown = {}
    for page, code in blocks("python"):
        name = re.match(r'"""(\w+\.py) ', code)
        if name is not None:
            shown[name[1]] = (page, code)
    files = {path.name: path for path in EXAMPLES.rglob("*.py")}
    assert shown.keys() == files.keys()
    for name, (page, code) in shown.items():
        assert code == files[name].read_text(), f"{page}: {name}"


def test_pieces_of_cpp_on_the_pages_are_in_the_example() -> None:
    pieces = blocks("cpp")
    assert len(pieces) >= 3
    program = (EXAMPLES / "cpp" / "generate.cc").read_text()
    for page, code in pieces:
        assert code in program, f"{page}: {code}"


def test_the_configuration_on_the_olive_page_is_the_example() -> None:
    shown = [code for page, code in blocks("json") if page == "olive.md"]
    assert shown == [(EXAMPLES / "olive" / "gptq.json").read_text()]


def test_what_pages_quote_of_commands_is_what_they_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for OLIVE, a model that is not here."""
    ran = []
    for page, code in blocks("console"):
        first, *quoted = code.splitlines()
        program, *words = shlex.split(first.removeprefix("$ "))
        if "OLIVE" in words:
            continue
        (tmp_path / page).mkdir()
        monkeypatch.chdir(tmp_path / page)
        Path("tests").symlink_to(ROOT / "tests")
        if words[0] != "compile":
            ort_aie_ep.compile(DEMO, "COMPILED")
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        printed = [line.rstrip() for line in done.stdout.splitlines()]
        assert [line for line in quoted if line != "…" and line not in printed] == [], page
        ran.append((program, words[0]))
    assert ran == [("ort-aie", "explain"), ("ort-aie", "compile")]


@pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24),
    reason="ONNX Runtime takes plugin execution providers from 1.24 on",
)
def test_the_provider_runs_as_many_nodes_as_the_page_says() -> None:
    (said,) = [code for page, code in blocks("text") if re.search(r"^\d+$", code, re.M)]
    (nodes,) = place(DEMO / "model.onnx").plans
    assert said.splitlines()[-1] == str(nodes)


def test_python_programs_of_both_hosts_print_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    ort_aie_ep.compile(DEMO, tmp_path / "COMPILED")

    def run(name: str) -> str:
        done = subprocess.run(
            [sys.executable, EXAMPLES / "python" / name, tmp_path / "COMPILED", PROMPT],
            env={**os.environ, "ORT_AIE_LIBRARY": ort_aie_ep.library_path()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = run("generate.py")
    assert text.startswith(PROMPT)
    assert len(text) > 2 * len(PROMPT)
    assert run("generate_genai.py") == text


@pytest.mark.in_turn  # tests/models/test_genai_drafts.py has the texts
def test_the_program_of_two_turns_on_the_genai_page_prints_the_models_own_text(
    tmp_path: Path,
) -> None:
    pytest.importorskip("onnxruntime_genai")
    page = (ROOT / "docs" / "hosts" / "genai.md").read_text()
    (command,) = re.findall(
        r"^```sh\n(.*?)^```", page[page.index("## Turns and rewind_to") :], re.M | re.S
    )
    ort_aie_ep.compile(DEMO, tmp_path / "COMPILED")
    (tmp_path / "examples").symlink_to(EXAMPLES)

    def run(command: str) -> str:
        words = shlex.split(command)
        program = {"ort-aie": ["-m", "ort_aie_ep"], "python": []}[words[0]]
        done = subprocess.run(
            [sys.executable, *program, *words[1:]],
            cwd=tmp_path,
            env={**os.environ, "ORT_AIE_LIBRARY": ort_aie_ep.library_path()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    turns = run(command)
    alone = run(f'ort-aie run COMPILED "{PROMPT}" --host genai --max-tokens 60')
    first, second = (text.strip() for text in turns.split("----"))
    assert first.startswith(PROMPT + alone[:20])
    assert second.startswith(first[: first.index("class Test")] + "if __name__")
