"""Starts the process of the modelled NPU, or answers why it cannot start.

    python -m ort_aie_ep.modelled_npu --device npu2 --socket 3 --memory 4

The host has chosen this Python (ORT_AIE_SIM_PYTHON), which may lack the packages of the extra
[npu]. So this module checks for them before it imports any.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys

from ort_aie_ep.requirements import SIMULATOR, MissingPackageError, require


def main() -> None:
    """Serve the host's requests, or answer the first one with the names of missing packages."""
    try:
        require(f"the modelled NPU, which runs in {sys.executable},", SIMULATOR)
    except MissingPackageError as error:
        _refuse(str(error))
        return
    from ort_aie_ep.modelled_npu import device_process

    device_process.main()


def _refuse(why: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--socket", type=int, required=True)
    with (
        socket.socket(fileno=parser.parse_known_args()[0].socket) as channel,
        channel.makefile("rw", encoding="utf-8") as stream,
    ):
        stream.readline()
        stream.write(json.dumps({"ok": False, "kind": "error", "error": why}) + "\n")
        stream.flush()


if __name__ == "__main__":
    main()
