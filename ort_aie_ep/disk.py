"""Room on disks: whether what is to be written fits, and what to do if it does not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ort_aie_ep.errors import AieError

UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)


def size_of(text: str, what: str, more: str = "") -> int:
    """Bytes, of a text such as "20GB".

    Raises:
        AieError: `what` has another text; `more` says what it may have besides.
    """
    size = _SIZE.fullmatch(text.strip())
    if size is None:
        raise AieError(f"{what} is {text!r}; expected a size such as 20GB{more}")
    return int(float(size[1]) * 1000 ** " KMGT".index(size[2].upper() or " "))


def size_text(size: float) -> str:
    """A number of bytes as a person reads it, such as "3.1 MB"."""
    scale, name = next(((scale, name) for scale, name in UNITS if size >= scale), UNITS[-1])
    return f"{size / scale:.{0 if scale == 1 else 1}f} {name}"


def require_room(
    folder: Path, size: int, what: str, error: type[AieError] = AieError, remedy: str = ""
) -> None:
    """Checks that `size` bytes fit onto the disk of `folder`; `what` is what needs them, a plural.

    Raises:
        AieError: they do not; an `error`, with the folder and the remedy, by default what to set.
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise error(
            f"{what} need {size_text(size)}, but the disk of {folder.absolute()} has "
            f"{size_text(free)} free: {remedy or ROOM}"
        )


# What a user can do where a disk is full. Commands write to a folder that the user names, to the
# cache, or to temporary files.
ROOM = (
    "choose a folder on another disk, by TMPDIR for temporary files and by ORT_AIE_CACHE for the "
    "cache"
)
