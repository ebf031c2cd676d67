"""What `make docs` adds to MkDocs, and the picture of the demonstration."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).parents[1]
REPOSITORY = "https://host/owner/name"

pytestmark = pytest.mark.skipif(
    not (PROJECT / "release").is_dir(), reason="no release/ beside the tests"
)


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, PROJECT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_has_every_page_once() -> None:
    docs = PROJECT / "docs"
    pages = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    nav = (PROJECT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert sorted(re.findall(r"[\w/-]+\.md$", nav, re.M)) == sorted(
        [*pages, *script("release/site_hook.py").ADDED.values()]
    )


@pytest.mark.parametrize(
    ("page", "link", "on_the_site"),
    [
        ("npu.md", "[x](npu-model.md#what-to-expect)", "[x](npu-model.md#what-to-expect)"),
        ("npu.md", "[x](#numerics)", "[x](#numerics)"),
        ("npu.md", "[x](https://host/page)", "[x](https://host/page)"),
        ("serve.md", "![x](serve.png)", "![x](serve.png)"),
        ("hosts/genai.md", "[x](../kv-cache.md)", "[x](../kv-cache.md)"),
        ("npu.md", "[x](../CONTRIBUTING.md#habits)", "[x](contributing.md#habits)"),
        ("hosts/genai.md", "[x](../../CONTRIBUTING.md)", "[x](../contributing.md)"),
        ("contributing.md", "[x](docs/npu.md#numerics)", "[x](npu.md#numerics)"),
        ("contributing.md", "[x](README.md)", "[x](README.md)"),
        ("npu.md", "[x](../LICENSE)", f"[x]({REPOSITORY}/blob/HEAD/LICENSE)"),
        ("npu.md", "[x](../src/npu)", f"[x]({REPOSITORY}/tree/HEAD/src/npu)"),
        ("npu.md", "```\n[x](../nothing.h)\n```", "```\n[x](../nothing.h)\n```"),
    ],
)
def test_links_lead_where_they_led_in_the_repository(
    page: str, link: str, on_the_site: str
) -> None:
    assert script("release/site_hook.py").site_links(link, page, REPOSITORY) == (on_the_site, [])


@pytest.mark.parametrize(
    ("link", "on_the_site"),
    [
        ("[`softmax.h`](../aie_kernels/common/softmax.h)", "`softmax.h`"),
        ("[why](../lab/README.md)", "why (`lab/README.md`)"),
    ],
)
def test_links_to_sources_become_paths_where_no_repository_is_named(
    link: str, on_the_site: str
) -> None:
    assert script("release/site_hook.py").site_links(link, "npu.md", "") == (on_the_site, [])


def test_links_to_nothing_are_reported() -> None:
    text = "[a](../src/nothing.h) [b](nothing.md#x) [c](../../beyond.md) [d](../LICENSE)"
    _, missing = script("release/site_hook.py").site_links(text, "npu.md", REPOSITORY)
    assert missing == ["../src/nothing.h", "nothing.md#x", "../../beyond.md"]


def test_what_a_page_would_load_from_elsewhere_is_found() -> None:
    page = """<link rel="stylesheet" href="https://a/x.css"><link rel="canonical" href="https://b/">
    <script src="//c/x.js"></script><img src="https://d/x.png"><a href="https://e/">x</a>
    <style>@import 'https://f/x.css'; p { background: url(https://g/x.png) url(own.png) }</style>"""
    loads = script("release/site_hook.py").outside_loads(page)
    assert [re.sub(r"^(https:)?//", "", url)[0] for url in loads] == list("acdfg")


def test_the_picture_has_every_line_that_was_printed_and_loads_nothing() -> None:
    lines = [f"line {n}" for n in range(60)] + ["\x1b[1;32m2.50\x1b[0m  <ratio>", "long " * 30]
    picture = script("lab/make_demo_picture.py").picture(
        "title", [(n / 10, x) for n, x in enumerate(lines)]
    )
    text = html.unescape("".join(re.findall(r"<text [^>]*>([^<]*)</text>", picture)))
    shown = " ".join(text.replace("\xa0", " ").split())
    for line in [*lines[:60], "2.50 <ratio>"]:
        assert "".join(line.split()) in shown.replace(" ", "")
    assert shown.count("long") == 30
    assert script("release/site_hook.py").outside_loads(picture) == []
