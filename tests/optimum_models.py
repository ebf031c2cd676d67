"""The recorded optimum exports in data/optimum, completed again, and quantised as users do it."""

from __future__ import annotations

import json
import logging
import shutil
import zlib
from pathlib import Path

import numpy as np
import onnx_ir as ir
from ml_dtypes import bfloat16

DATA = Path(__file__).parent / "data" / "optimum"
# The float16 export is separate: it is measured by another yardstick.
FLOAT16 = "llama_float16"
FAMILIES = ("llama", "llama_dynamo", "qwen3", "gemma3", "phi", "mistral")


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
        weights = rng.normal(0, deviation, shape).astype(value.dtype.numpy())
        value.const_value = ir.tensor(weights, name=key)
    ir.save(model, folder / "model.onnx")
    return folder


def quantise(source: Path, folder: Path, *, qdq: bool = False) -> Path:
    """Writes `source` quantised to 4 bits by ONNX Runtime's MatMulNBitsQuantizer, which gives
    blocks of 128 with zero points unless told otherwise; here blocks of 32.

    With `qdq`, as DequantizeLinear and MatMul instead of MatMulNBits."""
    # Imported here: the import takes seconds, and it logs each node.
    import onnx
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer").setLevel(logging.WARNING)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.onnx*"))
    config = DefaultWeightOnlyQuantConfig(
        block_size=32, quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator
    )
    quantizer = MatMulNBitsQuantizer(onnx.load(source / "model.onnx"), algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(str(folder / "model.onnx"), use_external_data_format=False)
    return folder


def with_accuracy_level(source: Path, folder: Path, level: int = 4) -> Path:
    """Writes `source` with this accuracy_level at each MatMulNBits: 4 rounds activations to 8 bits,
    0 nothing."""
    model = _copied(source, folder)
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            node.attributes.add(ir.AttrInt64("accuracy_level", level))
    ir.save(model, folder / "model.onnx")
    return folder


def with_bfloat16_scales(source: Path, folder: Path) -> Path:
    """Writes `source` with the weights that Q4NX can hold: bfloat16 scales and minima."""
    model = _copied(source, folder)
    for node in model.graph:
        if node.op_type != "MatMulNBits":
            continue
        scale_value, points_value = node.inputs[2], node.inputs[3]
        n, blocks = node.attributes["N"].as_int(), -(-node.attributes["K"].as_int() // 32)
        scales = scale_value.const_value.numpy().reshape(n, blocks)
        packed = points_value.const_value.numpy().reshape(n, -1)
        points = np.stack([packed & 15, packed >> 4], -1).reshape(n, -1)[:, :blocks]
        minima = (-scales * points).astype(bfloat16).astype(np.float32)
        rounded = scales.astype(bfloat16).astype(np.float32)
        # Zero points may have the scales' type: weight = scale · (code - zero point).
        shape = tuple(scale_value.const_value.shape.numpy())
        scale_value.const_value = ir.tensor(rounded.reshape(shape), name=scale_value.name)
        points_value.type = ir.TensorType(ir.DataType.FLOAT)
        points_value.shape = ir.Shape(shape)
        zero = rounded == 0
        floats = np.where(zero, 0, -minima / np.where(zero, 1, rounded)).reshape(shape)
        points_value.const_value = ir.tensor(floats, name=points_value.name)
    ir.save(model, folder / "model.onnx")
    return folder


def _copied(source: Path, folder: Path) -> ir.Model:
    shutil.copytree(source, folder)
    return ir.load(folder / "model.onnx")
