"""What parts of the package need beyond its base, and the pip line that installs it.

The base is only the libraries. Modules of the extra [tools] are looked for before they are
imported; importing this module imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
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
# Modules that the modelled NPU imports from the extra [npu], which includes [tools].
SIMULATOR = ("ml_dtypes", "numpy", "simpy")

GET_RUNTIME = "pip install 'onnxruntime>=1.23'"


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


def require_tools(what: str) -> None:
    """Checks that the packages for compiling and opening models are there; `what` needs them.

    Raises:
        MissingPackageError: with the packages that are missing, and how to install them.
    """
    require(what, TOOLS)


def require(what: str, modules: Iterable[str], extra: str = "tools") -> None:
    """Checks that `modules`, which come with `extra`, can be found; `what` needs them.

    Raises:
        MissingPackageError: with the packages that are missing, and how to install them.
    """
    missing = [module for module in modules if not _found(module)]
    if missing == [RUNTIME]:
        raise MissingPackageError(
            f"{what} needs ONNX Runtime, which is not installed: {GET_RUNTIME}"
        )
    if missing:
        names, are = ", ".join(missing), "are" if len(missing) > 1 else "is"
        raise MissingPackageError(
            f"{what} needs {names}, which {are} not installed: pip install 'ort_aie_ep[{extra}]'"
        )
