"""What the Python targets share: Atheris, with the one exception that is no finding."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["ort_aie_ep"]):
    from ort_aie_ep.errors import AieError


def fuzz(test: Callable[[bytes], None]) -> None:
    """Runs `test` on inputs without end. Any exception that is not an AieError is a finding."""

    def one(data: bytes) -> None:
        with contextlib.suppress(AieError):
            test(data)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
