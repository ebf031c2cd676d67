"""The recorded exports of optimum in data/optimum, made whole again, and quantised as users do."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import onnx_ir as ir

DATA = Path(__file__).parent / "data" / "optimum"
FAMILIES = ("llama", "qwen3", "gemma3", "phi", "mistral")


def write_export(name: str, folder: Path) -> Path:
    """Writes the folder of an export: its large tensors are normal random numbers, seeded by their
    names, of the recorded standard deviations."""
    folder.mkdir(parents=True)
    for file in ("config.json", "generation_config.json"):
        shutil.copyfile(DATA / name / file, folder / file)
    deviations = json.loads((DATA / name / "weights.json").read_text())
    model = ir.load(DATA / name / "model.onnx")
    for key, deviation in deviations.items():
        value = model.graph.initializers[key]
        rng = np.random.default_rng(zlib.crc32(key.encode()))
        shape = tuple(value.const_value.shape.numpy())
        weights = rng.normal(0, deviation, shape).astype(np.float32)
        value.const_value = ir.tensor(weights, name=key)
    ir.save(model, folder / "model.onnx")
    return folder


def quantise(source: Path, folder: Path, *, symmetric: bool = True, block_size: int = 32) -> Path:
    """Writes `source` quantised to 4 bits by ONNX Runtime's MatMulNBitsQuantizer."""
    # Imported here: it takes seconds.
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.onnx*"))
    quantizer = MatMulNBitsQuantizer(
        onnx.load(source / "model.onnx"), bits=4, block_size=block_size, is_symmetric=symmetric
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(folder / "model.onnx"), use_external_data_format=False)
    return folder
