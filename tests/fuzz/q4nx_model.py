"""FastFlowLM's models: the header of a `.q4nx` file, and config.json and generation_config.json.

An input is the JSON of the three, with a line "--" between. The tensors' bytes are zeros, as many
as half a megabyte at most; the sizes of the configuration must fit them.
"""

from __future__ import annotations

import struct

import atheris
from target import MARK, fuzz, scratch

with atheris.instrument_imports(include=["ort_aie_ep"]):
    from ort_aie_ep.compiler.fastflowlm.config import read_config
    from ort_aie_ep.compiler.fastflowlm.container import read_container
    from ort_aie_ep.compiler.fastflowlm.importer import _File

FOLDER = scratch()
BYTES = 1 << 19
FILE, CONFIG, GENERATION = (
    FOLDER / name for name in ("model.q4nx", "config.json", "generation_config.json")
)


def test(data: bytes) -> None:
    """Reads a container and its model's configuration."""
    header, _, rest = data.partition(MARK)
    config, _, generation = rest.partition(MARK)
    with FILE.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + BYTES)
    CONFIG.write_bytes(config)
    GENERATION.write_bytes(generation or b"{}")
    read_config(CONFIG, _File(FILE, read_container(FILE)).fitting)


if __name__ == "__main__":
    fuzz(test, of_json=True)
