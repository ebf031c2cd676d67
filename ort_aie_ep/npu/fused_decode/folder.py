"""The files of a folder made by mlir-air's `make compile-decode`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep.models.files import is_regular, read_regular
from ort_aie_ep.npu.terms.errors import PackageError

WINDOWS_STAMP = ".decode_windows"
FLAGS_STAMP = ".decode_flags"
#: Keys in a block of attention: a window is a multiple of this.
KEYS = 16

_TEMPLATE = re.compile(r"decode_L(\d{1,6})\.(xclbin|insts\.bin)")
_STAMP_BYTES = 4096
#: The flags that FLAGS_STAMP may contain. Another flag might change what a buffer holds.
_FLAGS = ("W_DUAL_CHAN", "DECODE_STACK", "DECODE_WGROUP")


@dataclass(frozen=True)
class Pair:
    """Two builds of one window, for contexts of `positions` tokens and of one fewer."""

    folder: Path
    positions: int

    def overlay(self, length: int) -> Path:
        """The xclbin that was built with the words of `length`."""
        return self.folder / f"decode_L{length}.xclbin"

    def words(self, length: int) -> Path:
        """The words of a context of `length` tokens."""
        return self.folder / f"decode_L{length}.insts.bin"

    @property
    def base_length(self) -> int:
        """The shorter context: mlir-air's own driver uses that build."""
        return self.positions - 1


@dataclass(frozen=True)
class DecodeFolder:
    """The contents of a folder: a pair for each window, ascending, and its build flags."""

    path: Path
    pairs: tuple[Pair, ...]
    flags: Mapping[str, int]

    @property
    def channels(self) -> int:
        """The number of shim channels for a column's weights."""
        return 2 if self.flags["W_DUAL_CHAN"] else 1


def read_folder(path: Path) -> DecodeFolder:
    """Read the folder. Raises PackageError, naming files that are missing or of another build."""
    if not path.is_dir():
        raise PackageError(f"{path} is not a folder")
    found = {entry.name for entry in path.iterdir() if _TEMPLATE.fullmatch(entry.name)}
    if not found:
        raise PackageError(
            f"{path} has no decode_L*.xclbin and decode_L*.insts.bin: pass the folder that "
            "mlir-air's `make compile-decode` wrote (decode_dyn_* of compile-decode-dynseq is "
            "another kind of overlay, which this command does not package)"
        )
    lengths = {int(_TEMPLATE.sub(r"\1", name)) for name in found}
    windows = sorted(length for length in lengths if length % KEYS == 0)
    pairs = tuple(Pair(path, window) for window in windows)
    wanted = {
        file.name
        for pair in pairs
        for length in (pair.positions, pair.base_length)
        for file in (pair.overlay(length), pair.words(length))
    }
    if missing := sorted(wanted - found):
        raise PackageError(
            f"{path} lacks {', '.join(missing)}: a window needs the overlay and the words of its "
            "length and of one token fewer"
        )
    if strays := sorted(found - wanted):
        raise PackageError(
            f"{path} has {', '.join(strays)}, which are not a pair of a window (a multiple of "
            f"{KEYS}) and one token fewer: remove files that another build left"
        )
    _check_windows(path, windows)
    return DecodeFolder(path, pairs, _flags(path))


def _stamp(path: Path) -> str | None:
    if not is_regular(path):
        return None
    try:
        return read_regular(path)[:_STAMP_BYTES].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(f"{path} cannot be read: {error}") from error


def _check_windows(path: Path, windows: list[int]) -> None:
    text = _stamp(path / WINDOWS_STAMP)
    if text is None:
        if len(windows) > 1:
            raise PackageError(
                f"{path} has windows of {_list(windows)} tokens but no {WINDOWS_STAMP}, which "
                "`make compile-decode-windows` writes: remove windows that another build left"
            )
        return
    said = text.split()
    if not all(word.isdecimal() for word in said) or sorted(map(int, said)) != windows:
        raise PackageError(
            f"{path / WINDOWS_STAMP} lists {text.strip() or 'nothing'}, but the folder has windows "
            f"of {_list(windows)} tokens: remove files of another build, or build again"
        )


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _flags(path: Path) -> dict[str, int]:
    file = path / FLAGS_STAMP
    text = _stamp(file)
    if text is None:
        raise PackageError(
            f"{path} has no {FLAGS_STAMP}, so the order of its weights is not known: build it "
            "again, or write the flags of the build there, such as W_DUAL_CHAN=1"
        )
    flags: dict[str, int] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name not in _FLAGS or not value.isdecimal():
            raise PackageError(
                f"{file} says {word}; the known flags are {', '.join(_FLAGS)}, each =NUMBER: a "
                "flag that this version does not know may change what the overlay reads"
            )
        flags[name] = int(value)
    if flags.get("W_DUAL_CHAN") not in (0, 1):
        raise PackageError(f"{file} must say W_DUAL_CHAN=0 or W_DUAL_CHAN=1, got {text.strip()!r}")
    return flags
