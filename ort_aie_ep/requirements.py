"""What parts of the package need beyond its base, and the pip line that installs it.

The line names what is missing, not an extra of ort_aie_ep: so it works wherever this package came
from, and compiles nothing.

The base is only the libraries. Modules of the extra [tools] are looked for before they are
imported; importing this module imports none of them.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec

from ort_aie_ep.errors import AieError

RUNTIME = "onnxruntime"
# The modules of the extra [tools] in pyproject.toml.
TOOLS = (
    "ml_dtypes",
    "numpy",
    "onnx_ir",
    RUNTIME,
    "onnxscript",
    "rich",
    "tokenizers",
    "typer",
)
# Modules that the server imports from the extra [serve].
SERVER = ("fastapi", "jinja2", "llguidance", "prometheus_client", "uvicorn")
# Modules that the modelled NPU imports from the extra [npu], which includes [tools].
SIMULATOR = ("ml_dtypes", "numpy", "simpy")


class MissingPackageError(AieError):
    """A package from an extra of ort_aie_ep is not installed."""


def runtime_version() -> str:
    """The version of the installed ONNX Runtime; empty if it is missing."""
    try:
        return metadata.version(RUNTIME)
    except metadata.PackageNotFoundError:
        # Builds for a device have other names: onnxruntime-gpu has the module onnxruntime too.
        names = metadata.packages_distributions().get(RUNTIME, ()) if _found(RUNTIME) else ()
        return next(map(metadata.version, names), "")


def _found(module: str) -> bool:
    """Whether a module can be found; a folder without code, as uninstalling leaves, is not one."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def install_line(modules: Iterable[str]) -> str:
    """The command that installs what has these modules into this Python."""
    wanted = _requirements()
    here = [sys.executable, "-m", "pip", "install"]
    if not _found("pip"):  # an environment of uv
        here = ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*here, *(wanted.get(module, module) for module in modules)])


def _requirements() -> dict[str, str]:
    """Module → the requirement that brings it, of all extras."""
    lines: list[str] = []
    with suppress(metadata.PackageNotFoundError):  # sources that are not installed
        lines = metadata.requires("ort_aie_ep") or []
    wanted = (line.partition(";")[0].strip() for line in lines)
    return {re.split(r"[^\w.-]", each)[0].replace("-", "_"): each for each in wanted}


def require_tools(what: str) -> None:
    """Checks that the packages for compiling and opening models are there; `what` needs them.

    Raises:
        MissingPackageError: with the packages that are missing, and how to install them.
    """
    require(what, TOOLS)


def require(what: str, modules: Iterable[str]) -> None:
    """Checks that `modules`, which extras bring, can be found; `what` needs them.

    Raises:
        MissingPackageError: with the packages that are missing, and how to install them.
    """
    missing = [module for module in modules if not _found(module)]
    if missing:
        names = "ONNX Runtime" if missing == [RUNTIME] else ", ".join(missing)
        are = "are" if len(missing) > 1 else "is"
        raise MissingPackageError(
            f"{what} needs {names}, which {are} not installed: {install_line(missing)}"
        )
