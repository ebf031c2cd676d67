"""Text that comes with every Python installation: the standard library's own sources.

The demonstration model is trained on one part of it and its accuracy is measured on the other.
A module's name alone decides its part (`is_held_out`), so the split is the same for every Python
version, and a module held out on one machine was also held out of the training.

Pure standard library, no imports from the rest of the package: usable before anything is built.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

__all__ = ["HELD_OUT_PERCENT", "held_out_text", "is_held_out", "modules", "training_text"]

# Fixed before the first training run. A change would move trained modules into the held-out part.
HELD_OUT_PERCENT = 5

# Folders that are not part of the standard library, or not code that a person would read: installed
# packages, tests, bundled wheels, lib2to3 (dropped in Python 3.13), and generated tables (character
# maps, the text of the help topics), which would be a fifth of the corpus.
_SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "encodings",
        "ensurepip",
        "idle_test",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
    }
)

# Modules written for one machine: they contain its paths and build flags.
_SKIPPED_PREFIXES = ("_sysconfigdata", "sitecustomize", "usercustomize")


def _module_name(relative: Path) -> str | None:
    """`asyncio/base_events.py` → `asyncio.base_events`; None if it is not an importable module."""
    parts = relative.with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    if not parts or not all(part.isidentifier() for part in parts):
        return None
    return ".".join(parts)


def modules(stdlib: Path | None = None) -> list[tuple[str, Path]]:
    """(module name, file) of every standard library module with a source file, sorted by name.

    `stdlib` is the folder to walk, by default the running Python's.
    """
    root = Path(sysconfig.get_path("stdlib")) if stdlib is None else stdlib
    found: dict[str, Path] = {}
    for folder, subfolders, files in os.walk(root):
        # Pruned in place: site-packages may have a hundred times as many files as the library.
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        for file in files:
            if not file.endswith(".py") or file.startswith(_SKIPPED_PREFIXES):
                continue
            path = Path(folder, file)
            name = _module_name(path.relative_to(root))
            if name is not None:
                found[name] = path
    return sorted(found.items())


def is_held_out(module_name: str) -> bool:
    """Whether the module is kept out of training: a hash of its name, about one in twenty."""
    digest = hashlib.sha256(module_name.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") % 100 < HELD_OUT_PERCENT


def _texts(held_out: bool, stdlib: Path | None) -> Iterator[tuple[str, str]]:
    for name, path in modules(stdlib):
        if is_held_out(name) != held_out:
            continue
        # tokenize.open honours the file's encoding cookie and turns \r\n into \n.
        with tokenize.open(path) as file:
            text = file.read()
        if text.strip():
            yield name, text


def training_text(stdlib: Path | None = None) -> Iterator[tuple[str, str]]:
    """(module name, source text) of the modules to train on, sorted by name."""
    return _texts(False, stdlib)


def held_out_text(stdlib: Path | None = None) -> Iterator[tuple[str, str]]:
    """(module name, source text) of the modules kept for measuring, sorted by name."""
    return _texts(True, stdlib)
