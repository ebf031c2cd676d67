"""The Python that runs the model builder: this one, another one, or one in a new environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from ort_aie_ep.compiler.checkpoint.process import run_logged
from ort_aie_ep.errors import AieError
from ort_aie_ep.progress import Progress
from ort_aie_ep.requirements import MissingPackageError

VARIABLE = "ORT_AIE_BUILDER_PYTHON"
# The modules that the builder and `merge_adapter.py` import, and the packages that bring them.
MODULES = {
    "onnx_ir": "onnx-ir",
    "onnxruntime": "onnxruntime",
    "onnxruntime_genai": "onnxruntime-genai",
    "safetensors": "safetensors",
    "torch": "torch",
    "transformers": "transformers",
}
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
# The interpreter in a virtual environment.
PYTHON = Path("Scripts", "python.exe") if os.name == "nt" else Path("bin", "python")
# The first version of onnxruntime-genai whose builder `run_builder.py` can call.
OLDEST = (0, 18)
# Finds the modules without importing them: torch alone takes seconds. A folder without code, as
# uninstalling leaves, is not a module. Packages for other devices have the module onnxruntime_genai
# too.
_PROBE = """
import json, sys
from importlib import metadata, util
found = {name: util.find_spec(name) for name in sys.argv[1:]}
names = sorted(set(metadata.packages_distributions().get("onnxruntime_genai", ())))
print(json.dumps({
    "missing": [name for name, spec in found.items() if spec is None or spec.origin is None],
    "versions": [metadata.version(name) for name in names],
}))
"""
_PROBE_SECONDS = 120


def find_python(given: Path | None, environment: Path | None) -> tuple[Path, str]:
    """The interpreter to use, without making any, and what named it.

    Args:
        given: an interpreter that the user names.
        environment: a virtual environment that the user names; it may not exist yet.
    """
    if given is not None and environment is not None:
        raise AieError("--builder-python and --builder-env both name a Python: leave one out")
    if environment is not None:
        return environment.absolute() / PYTHON, "--builder-env"
    if given is not None:
        return given.absolute(), "--builder-python"
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute(), VARIABLE
    return Path(sys.executable), ""


def missing_packages(python: Path) -> list[str]:
    """The packages that the builder needs and `python` lacks.

    Raises:
        AieError: `python` is not an interpreter that runs.
    """
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, *MODULES],
            env=os.environ | {"PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
        found = json.loads(done.stdout) if done.returncode == 0 and done.stdout else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise AieError(f"{python} does not run as a Python: {error}") from error
    if not isinstance(found, dict):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise AieError(f"{python} does not run as a Python: {last}")
    missing = [MODULES[name] for name in found["missing"]]
    for version in found["versions"]:
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
            newer = ".".join(map(str, OLDEST))
            missing.append(f"onnxruntime-genai {newer} or newer (it has {version})")
    return missing


def require_python(python: Path, named_by: str, what: str, command: str) -> None:
    """Checks that an interpreter can run the builder.

    Args:
        python: the interpreter.
        named_by: what names it; empty for the one that runs this.
        what: what needs the builder.
        command: the command that makes an environment and goes on.

    Raises:
        MissingPackageError: with what is missing, and `command`.
        AieError: it does not run.
    """
    missing = missing_packages(python)
    if not missing:
        return
    where = f"{python} ({named_by})" if named_by else str(python)
    names, are = ", ".join(missing), "are" if len(missing) > 1 else "is"
    raise MissingPackageError(
        f"{what} is a Hugging Face checkpoint, which onnxruntime-genai's model builder has to turn "
        f"into ONNX first. The builder needs {names}, which {are} not installed in {where}. This "
        "command installs everything it needs into an environment of its own (1.3 GB, several with "
        f"CUDA), which later commands can use too:\n  {command}\nIf another Python has the "
        f"packages, name it with --builder-python PATH or {VARIABLE}."
    )


def make_environment(folder: Path, log: Path, progress: Progress | None) -> Path:
    """Makes a virtual environment with the builder, unless it is there; returns its interpreter.

    pip takes the packages from where it is configured to. An environment that lacks some is
    completed. A folder that did not exist before disappears if this fails.

    Raises:
        AieError: the folder is not an environment; pip fails.
    """
    python = folder.absolute() / PYTHON
    existed = folder.exists()
    if existed and not python.exists() and any(folder.iterdir()):
        raise AieError(f"{folder} is not a virtual environment: it has no {PYTHON}")
    try:
        if not python.exists():
            if progress is not None:
                progress(0, 0, f"making {folder}, for the model builder: 1.3 GB, several with CUDA")
            venv.create(folder, with_pip=True)
        if missing_packages(python):
            what = f"installing the model builder into {folder}"

            def say(line: str) -> None:
                if progress is not None and line:
                    progress(0, 0, line.strip())

            say(what)
            command: Sequence[str | Path] = (python, "-m", "pip", "install", "-r", REQUIREMENTS)
            run_logged(command, log, what, line=say)
    except (OSError, subprocess.CalledProcessError) as error:
        _remove(folder, existed)
        raise AieError(f"{folder} cannot be made a virtual environment: {error}") from error
    except BaseException:
        _remove(folder, existed)
        raise
    return python


def _remove(folder: Path, existed: bool) -> None:
    if not existed:
        shutil.rmtree(folder, ignore_errors=True)
