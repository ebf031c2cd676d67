"""Design packages: the manifest, and the overlay beside it.

An input is manifest.json; after a line "--" come the bytes of the overlay.
"""

from __future__ import annotations

import contextlib

import atheris
from target import MARK, fuzz, scratch

with atheris.instrument_imports(include=["ort_aie_ep"]):
    from ort_aie_ep.errors import AieError
    from ort_aie_ep.npu.packages.package import MANIFEST, OVERLAY, read_package
    from ort_aie_ep.npu.packages.simulated import read_simulated_overlay

FOLDER = scratch()


def test(data: bytes) -> None:
    """Reads the package, and its overlay as an overlay for the modelled NPU."""
    manifest, _, overlay = data.partition(MARK)
    (FOLDER / MANIFEST).write_bytes(manifest)
    (FOLDER / OVERLAY).write_bytes(overlay)
    with contextlib.suppress(AieError):
        read_package(FOLDER)
    read_simulated_overlay(FOLDER / OVERLAY)


if __name__ == "__main__":
    fuzz(test, of_json=True)
