"""optimum's ORTModelForCausalLM: for each line of JSON, the tokens that it generates.

A process of its own, whose Python has optimum-onnx and torch (`make .venv/optimum/ready`) and not
ort_aie_ep.
"""

import json
import sys

import onnxruntime
import torch
from optimum.onnxruntime import ORTModelForCausalLM

for line in sys.stdin:
    asked = json.loads(line)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(asked["library"])
    model = ORTModelForCausalLM.from_pretrained(asked["folder"], session_options=options)
    prompt = torch.tensor([asked["prompt"]])
    tokens = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=asked["new"],
        do_sample=False, eos_token_id=-1, pad_token_id=0,
    )  # fmt: skip
    print(json.dumps(tokens[0, prompt.shape[1] :].tolist()), flush=True)
