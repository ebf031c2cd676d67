"""quantize_torch.py SOURCE DESTINATION: int4 weights in groups of 32, as a Hugging Face folder."""

import sys

import torch
from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors
from transformers import AutoModelForCausalLM, AutoTokenizer

source, destination = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
template = LLMTemplate.get(model.config.model_type)
quantizer = ModelQuantizer(template.get_config(scheme="uint4_wo_32", exclude_layers=["lm_head"]))
model = quantizer.freeze(quantizer.quantize_model(model))
with torch.no_grad():
    export_safetensors(model, destination)
AutoTokenizer.from_pretrained(source).save_pretrained(destination)
