"""The command `ort-aie`: it reads arguments, calls other modules and prints their reports.

The commands import what is slow to import (ONNX Runtime, onnx_ir, tokenizers) only when they run.
"""

from __future__ import annotations

# Importing them registers their commands.
from ort_aie_ep.cli import batch as _batch  # noqa: F401
from ort_aie_ep.cli import cache as _cache  # noqa: F401
from ort_aie_ep.cli import chat as _chat  # noqa: F401
from ort_aie_ep.cli import fastflowlm as _fastflowlm  # noqa: F401
from ort_aie_ep.cli import kernels as _kernels  # noqa: F401
from ort_aie_ep.cli import measure as _measure  # noqa: F401
from ort_aie_ep.cli import models as _models  # noqa: F401
from ort_aie_ep.cli import package_overlay as _package_overlay  # noqa: F401
from ort_aie_ep.cli import predict as _predict  # noqa: F401
from ort_aie_ep.cli import serve as _serve  # noqa: F401
from ort_aie_ep.cli import tune as _tune  # noqa: F401
from ort_aie_ep.cli import validate as _validate  # noqa: F401
from ort_aie_ep.cli.application import app

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line, where the packages that it needs are known to be there."""
    app(prog_name="ort-aie")
