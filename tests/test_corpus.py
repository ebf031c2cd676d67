"""The split of the standard library into training and held-out text."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ort_aie_ep.models import corpus


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder laid out like a standard library, with files that do not belong to it."""
    files = {
        "plistlib.py": "a = 1\n",
        "asyncio/__init__.py": "b = 2\r\n",
        "asyncio/events.py": "# -*- coding: latin-1 -*-\nc = 'é'\n",
        "empty.py": "",
        "site-packages/other.py": "no",
        "test/test_a.py": "no",
        "unittest/test/dummy.py": "no",
        "idlelib/idle_test/test_b.py": "no",
        "ensurepip/__init__.py": "no",
        "config-3.11-x86_64-linux-gnu/python-config.py": "no",
        "_sysconfigdata__linux_x86_64-linux-gnu.py": "no",
        "sitecustomize.py": "no",
        "notes.txt": "no",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    return tmp_path


def test_modules_are_the_importable_ones_sorted_by_name(library: Path) -> None:
    assert [name for name, _ in corpus.modules(library)] == [
        "asyncio",
        "asyncio.events",
        "empty",
        "plistlib",
    ]


def test_texts_honour_encoding_and_newlines_and_leave_out_empty_files(library: Path) -> None:
    texts = dict(corpus.training_text(library)) | dict(corpus.held_out_text(library))
    assert texts == {
        "asyncio": "b = 2\n",
        "asyncio.events": "# -*- coding: latin-1 -*-\nc = 'é'\n",
        "plistlib": "a = 1\n",
    }


def test_the_split_is_the_one_the_demonstration_model_was_trained_with() -> None:
    held_out = ["email._header_value_parser", "plistlib", "secrets", "tty", "unittest.suite"]
    trained = ["argparse", "asyncio", "json.decoder", "os", "subprocess", "typing"]
    assert all(map(corpus.is_held_out, held_out))
    assert not any(map(corpus.is_held_out, trained))


def test_running_python_has_enough_text_in_both_parts() -> None:
    training = dict(corpus.training_text())
    held_out = dict(corpus.held_out_text())
    assert training.keys().isdisjoint(held_out)
    assert sum(map(len, training.values())) > 5_000_000
    # At about 3.6 characters a token, five times the 20,000 tokens accuracy is measured on.
    assert sum(map(len, held_out.values())) > 150_000
    ast.parse(held_out["plistlib"])


def test_corpus_imports_nothing_outside_the_standard_library() -> None:
    code = (
        "import sys, runpy; sys.modules.update(numpy=None, onnx_ir=None, onnxruntime=None);"
        f"runpy.run_path({str(corpus.__file__)!r})"
    )
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
