"""The code on the pages runs, on the oldest ONNX Runtime that its page names for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

import ort_aie_ep

ROOT = Path(__file__).parents[1]
DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"
PAGES = ("README.md", "docs/execution-provider.md", "docs/hosts/inference-session.md")
VERSION = re.compile(r"ONNX Runtime (1\.\d\d)\b(?!\.\d)")

# What is in code that does not run here, and what runs such code instead.
ELSEWHERE = {
    '"""': "tests/test_host_pages.py: a whole program of examples/",
    "docs/pictures.md": "tests/models/test_pictures.py",
    "onnxruntime_genai": "tests/models/test_genai.py, test_genai_drafts.py",
    "parameters.set_": "tests/models/test_genai_drafts.py",
    "og.Adapters": "tests/models/test_adapters.py",
    "optimum.onnxruntime": "tests/doors",
    "ORTModel": "nothing: no encoder with a decoder is opened by optimum here",
    "ort_aie_ep.batch": "tests/batch",
    "import_q4nx": "tests/fastflowlm",
    "OWNER/REPO": "tests/hub",
    "logits_of_last": "tests/passes/projection/test_last_logits.py",
    "client.": "tests/serving",
}

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="no docs beside the tests")


def blocks(page: str) -> list[tuple[str, str]]:
    """(version, code) of each block of Python: the version that its section names last before it,
    else the first on the page."""
    text = (ROOT / page).read_text()
    first = VERSION.search(text)
    found = []
    for section in re.split(r"^(?=## )", text, flags=re.M):
        for block in re.finditer(r"^```python\n(.*?)^```", section, re.M | re.S):
            named = VERSION.findall(section[: block.start()])
            found.append((named[-1] if named else first[1] if first else "", block[1]))
    return found


def runs_here(page: str, code: str) -> bool:
    return page in PAGES and not re.search("onnxruntime_genai|optimum", code)


SCRIPTS = [
    (page, version)
    for page in PAGES
    for version in sorted({version for version, code in blocks(page) if runs_here(page, code)})
]


@pytest.mark.parametrize(("page", "version"), SCRIPTS)
def test_what_a_version_can_run_of_a_page_runs_there(
    page: str, version: str, tmp_path: Path
) -> None:
    environment = os.environ | {"ORT_AIE_CACHE": str(tmp_path / "cache")}
    if not onnxruntime.__version__.startswith(f"{version}."):
        # Where `make test` puts the first with the provider, and the first that takes its name.
        places = list(Path(sys.prefix).glob(f"onnxruntime-{version}.*/onnxruntime"))
        if not places:
            pytest.skip(f"there is no ONNX Runtime {version}")
        environment["PYTHONPATH"] = str(places[0].parent)
    (since, first), *others = blocks(page)  # the others continue the first
    codes = [first] if since <= version else []
    codes += [code for named, code in others if named == version and runs_here(page, code)]
    codes.append(f'assert onnxruntime.__version__.startswith("{version}.")\n')
    (tmp_path / "MODEL").symlink_to(DEMO)
    (tmp_path / "CONTEXT").mkdir()
    if "argv" in first:
        ort_aie_ep.compile(DEMO, tmp_path / "COMPILED")
    (tmp_path / "page.py").write_text("\n".join(codes))
    done = subprocess.run(
        [sys.executable, "page.py", "COMPILED", "def main(argv):"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "EP Error" not in done.stdout  # what falls back to the CPU EP says so, and goes on


def test_all_other_code_on_pages_is_tested_elsewhere() -> None:
    pages = ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
    untested = [
        f"{page}: {code}"
        for page in pages
        for _, code in blocks(page)
        if not runs_here(page, code) and not any(key in page + code for key in ELSEWHERE)
    ]
    assert untested == []
