"""Tests that the docs name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"


@pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")
def test_the_tests_that_the_docs_name_exist() -> None:
    sources = [path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__)]
    existing = {name for text in sources for name in re.findall(r"^def (test_\w+)", text, re.M)}
    cases = "".join(path.read_text() for path in TESTS.rglob("*.cc"))
    existing |= set(re.findall(r"^void (\w+)\(", cases, re.M))
    named = set()
    for line in (DOCS / "prompts-and-cache.md").read_text().splitlines():
        if line.startswith("|"):
            named |= set(re.findall(r"`(test_\w+|[A-Z]\w+)`", line.rsplit("|", 2)[1]))
    assert len(named) > 20
    assert named <= existing, sorted(named - existing)


@pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")
def test_the_files_that_the_docs_name_exist() -> None:
    project = TESTS.parent
    folders = "src|ort_aie_ep|graph_passes|aie_kernels|tests|scripts|docs|examples|cmake"
    pages = [*project.glob("*.md"), *DOCS.rglob("*.md"), *project.glob("*/README.md")]
    pages += (project / "src").rglob("README.md")
    missing = [
        f"{page.relative_to(project)}: {name}"
        for page in pages
        for name in re.findall(rf"`((?:{folders})/[\w./*-]*)`", page.read_text())
        if "NAME" not in name and not any(project.glob(name.rstrip("/")))
    ]
    assert not missing
