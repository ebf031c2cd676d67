"""quantize_onnx.py SOURCE DESTINATION: MatMulNBits in a float model of the model builder."""

import shutil
import sys

from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

source, destination = sys.argv[1:]
config = get_default_config("MATMUL_NBITS")
config.extra_options["UseRandomData"] = True  # Quark requires it, though it runs no calibration
config.extra_options["MatMulNBitsParams"] = {
    "GroupSize": 32,
    "Symmetric": False,
    "Bits": 4,
    "AccuracyLevel": 4,
}
shutil.copytree(source, destination, ignore=shutil.ignore_patterns("model.onnx*"))
ModelQuantizer(Config(global_quant_config=config)).quantize_model(
    f"{source}/model.onnx", f"{destination}/model.onnx", None
)
