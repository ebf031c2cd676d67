"""Everything that the docs name exists: files, pages, headings, commands and options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from ort_aie_ep.cli import app

PROJECT = Path(__file__).parents[1]
DOCS = PROJECT / "docs"


def pages() -> list[Path]:
    found = [*PROJECT.glob("*.md"), *DOCS.rglob("*.md"), *PROJECT.glob("*/README.md")]
    found += [*PROJECT.glob("aie_kernels/*/README.md"), *PROJECT.glob("lab/*/*/README.md")]
    return found + list((PROJECT / "src").rglob("README.md"))


@pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")
def test_the_files_that_the_docs_name_exist() -> None:
    folders = "src|ort_aie_ep|graph_passes|aie_kernels|tests|lab|release|docs|examples|cmake"
    missing = [
        f"{page.relative_to(PROJECT)}: {name}"
        for page in pages()
        for name in re.findall(rf"`((?:{folders})/[\w./*-]*)`", page.read_text())
        if "NAME" not in name and not any(PROJECT.glob(name.rstrip("/")))
    ]
    assert not missing


@pytest.mark.skipif(not (PROJECT / "lab").is_dir(), reason="no lab beside the tests")
def test_each_program_of_the_lab_has_its_line() -> None:
    said = (PROJECT / "lab" / "README.md").read_text()
    lab = PROJECT / "lab"
    programs = [*lab.glob("*.py"), *(main.parent for main in lab.glob("*/__main__.py"))]
    assert [p.name for p in programs if f"`{p.name}`" not in said] == []


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    texts = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in texts)
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in plain}


@pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")
def test_links_lead_to_pages_and_headings() -> None:
    broken, followed = [], 0
    for page in pages():
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"\w+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            followed += 1
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(PROJECT)}: {link}")
    assert not broken
    assert followed > 100


@pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")
def test_tables_have_one_heading_and_as_many_cells_in_each_row() -> None:
    wrong, checked = [], 0
    for page in pages():
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for table in re.findall(r"(?:^\|.*\n)+", text + "\n", re.M):
            rows = re.sub(r"`[^`\n]*`|\\\|", "", table).splitlines()
            cells = {row.count("|") for row in rows}
            checked += 1
            if len(rows) < 3 or not re.fullmatch(r"\|[ :|-]+\|", rows[1]) or len(cells) > 1:
                wrong.append(f"{page.relative_to(PROJECT)}: {table.splitlines()[0]}")
    assert not wrong
    assert checked > 100


@pytest.mark.skipif(not DOCS.is_dir(), reason="no docs beside the tests")
def test_commands_have_the_options_that_the_docs_give_them() -> None:
    root = typer.main.get_command(app)
    wrong, checked = [], 0
    for page in pages():
        text = re.sub(r"\\\n\s*", " ", page.read_text())
        for line in re.findall(
            r"(?:^|[`$&]) ?(?:\.venv/bin/)?ort-aie ([a-z][^`\n#|&]*)", text, re.M
        ):
            command, words = root, line.split()
            while hasattr(command, "commands") and words:
                name = words.pop(0).rstrip(".,;:)")
                if name not in command.commands:
                    wrong.append(f"{page.relative_to(PROJECT)}: ort-aie {line}")
                    break
                command = command.commands[name]
            known = {option for parameter in command.params for option in parameter.opts}
            given = {word for word in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", " ".join(words))}
            checked += len(given)
            if given - known - {"--help"}:
                wrong.append(f"{page.relative_to(PROJECT)}: ort-aie {line}: {given - known}")
    assert not wrong
    assert checked > 50, checked
