"""What AieExecutionProvider does with a model's nodes, found out in a real session.

The session has its own process (`-m ort_aie_ep.runtime.provider MODEL`), because registering a
provider affects a whole process, and reasons appear only in ONNX Runtime's log, on stderr.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import ort_aie_ep
from ort_aie_ep.errors import AieError

NAME = ort_aie_ep.get_ep_name()
# A line logged by src/ort/ep/ep.cc; colour codes of the terminal may follow.
_LEFT = re.compile(r"node '(.*)' stays on another execution provider: ([^\x1b\n]*)")
_LOG_INFO = 1


@dataclass(frozen=True)
class Placement:
    """What happened to one node.

    Attributes:
        claimed: whether AieExecutionProvider got it.
        reason: why not, as the provider logged it; empty if it did not look at the node.
    """

    claimed: bool
    reason: str


@dataclass(frozen=True)
class Placements:
    """What happened to a model's nodes.

    Attributes:
        nodes: by name.
        plans: how many nodes of the model each plan of AieExecutionProvider replaces.
    """

    nodes: dict[str, Placement]
    plans: tuple[int, ...]


def place(model: Path) -> Placements:
    """What happens to an .onnx file's nodes in a session on the file as it is.

    Nodes without a name are missing, as are those that ONNX Runtime folded or fused before it asked
    the provider.

    Raises:
        AieError: ONNX Runtime is older than 1.24, or cannot open the model.
    """
    import onnxruntime

    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise AieError(
            f"ONNX Runtime {onnxruntime.__version__} does not report what an execution provider "
            "gets: this needs 1.24 or newer"
        )
    # -P: do not import a folder ort_aie_ep of the working directory instead of this package.
    command = [sys.executable, "-P", "-m", "ort_aie_ep.runtime.provider", str(model.absolute())]
    done = subprocess.run(
        command, capture_output=True, check=False, encoding="utf-8", errors="replace"
    )
    if done.returncode != 0:
        message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise AieError(f"{model} cannot be opened with {NAME}: {message}")
    reasons = dict(_LEFT.findall(done.stderr))
    parts: list[tuple[str, list[str]]] = json.loads(done.stdout.splitlines()[-1])
    nodes = {
        node: Placement(provider == NAME, reasons.get(node, ""))
        for provider, names in parts
        for node in filter(None, names)
    }
    return Placements(nodes, tuple(len(names) for provider, names in parts if provider == NAME))


def _parts(model: str) -> list[tuple[str, list[str]]]:
    """(provider, names of nodes) that ONNX Runtime gives to providers, with each plan apart."""
    import onnxruntime

    onnxruntime.register_execution_provider_library(NAME, ort_aie_ep.library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_INFO
    # Providers are asked after the basic optimisations; others and repacking would only cost time.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
    options.add_provider_for_devices(devices[:1], {})
    session = onnxruntime.InferenceSession(model, options, enable_fallback=False)
    return [
        (part.ep_name, [node.name for node in part.get_nodes()])
        for part in session.get_provider_graph_assignment_info()
    ]


def _main() -> int:
    from ort_aie_ep.runtime.sessions import plain_message

    try:
        print(json.dumps(_parts(sys.argv[1])))
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        print(plain_message(error).replace("\n", " "), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
