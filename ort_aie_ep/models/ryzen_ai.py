"""Models that AMD converted for its own runtime, which nothing else opens.

AMD's converter (`onnx_utils`, `model_generate` of the Ryzen AI Software) replaces most of a model's
nodes by operators in domains of its own, whose kernels are in onnx_custom_ops and
onnxruntime_providers_ryzenai, without sources. It writes their weights into a .bin file, and their
list into a .pb.bin file, which genai_config.json names as external_data_file:

    hybrid   model_jit.onnx  model_jit.onnx.data  model_jit.bin  model_jit.pb.bin
    NPU      fusion.onnx     fusion.onnx.data     prefill.bin    prefill.pb.bin

Sources: "Preparing OGA Models" and "OGA API" of ryzenai.docs.amd.com; the listings of
amd/Llama-3.1-8B-onnx-ryzenai-hybrid and amd/Mistral-7B-Instruct-v0.3-awq-g128-int4-asym-fp16-onnx-hybrid;
the files that issue 371 of amd/RyzenAI-SW has of an NPU's; issue 380 has the domain.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterable

DOMAINS = ("com.amd", "com.ryzenai")
INSTEAD = (
    "take the same model as GGUF, as its original checkpoint, or as an ONNX export at int4 for CPUs"
)
_FILES = re.compile(r".+_jit\.onnx|.+\.pb\.bin")


def ryzen_ai_file(names: Iterable[str]) -> str:
    """The file that shows that a folder with these files, beside genai_config.json, is such a
    model; empty if none does."""
    return next((name for name in sorted(names) if _FILES.fullmatch(name)), "")
