"""Record optimum's exports of tiny random models: the graphs in tests/data/optimum.

    python -m venv optimum && optimum/bin/pip install -r lab/requirements-optimum.txt
    optimum/bin/python lab/make_optimum_models.py tests/data/optimum

Each family gets one folder: config.json and generation_config.json as optimum writes them, and the
graph without its large tensors. weights.json has their names, standard deviations and order. They
are random anyway, so tests/optimum_models.py makes them again where they are needed.

With `--keep FOLDER`, the exports themselves stay there, as `optimum-cli export onnx` writes them.
Without a name after the folder, the script makes all of them. It replaces a folder that exists.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from optimum_exports import DYNAMO, FLOAT16, RECORDED, export

# Smaller tensors (norm weights, biases and constants) stay in the graph.
LARGE_BYTES = 4096
KEPT_FILES = ("config.json", "generation_config.json")


def record(exported: Path, destination: Path) -> None:
    """Keep the configuration, the graph, and the standard deviation of each large tensor."""
    if destination.exists():
        shutil.rmtree(destination)
    destination.mkdir(parents=True)
    for file in KEPT_FILES:
        shutil.copyfile(exported / file, destination / file)
    model = onnx.load(exported / "model.onnx")
    deviations = {}
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) <= LARGE_BYTES:
            continue
        deviations[tensor.name] = round(float(numpy_helper.to_array(tensor).std()), 6)
        tensor.ClearField("raw_data")
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
        part.ClearField("metadata_props")  # the place in Python that each node comes from
        part.ClearField("doc_string")
    model.graph.ClearField("metadata_props")
    (destination / "weights.json").write_text(json.dumps(deviations, indent=2) + "\n")
    onnx.save(model, destination / "model.onnx")


def main() -> None:
    """Make the folders named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECORDED))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the exports here")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    unknown = set(arguments.names) - RECORDED.keys()
    if unknown:
        parser.error(
            f"unknown family: {', '.join(sorted(unknown))}; choose from {', '.join(RECORDED)}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names or RECORDED:
            exported = (arguments.keep or Path(scratch)) / name
            dtype = "fp16" if name.endswith(FLOAT16) else None
            export(RECORDED[name](), exported, dtype=dtype, by_dynamo=name.endswith(DYNAMO))
            record(exported, arguments.folder / name)
            size = sum(file.stat().st_size for file in (arguments.folder / name).iterdir())
            print(f"{name}: {size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
