"""generate.py FOLDER PROMPT: greedy text from a plain InferenceSession."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

import ort_aie_ep

NEW_TOKENS = 30

folder, prompt = Path(sys.argv[1]), sys.argv[2]
decoder = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.no_truncation()  # the file can hold those of a training run
tokenizer.no_padding()

options = onnxruntime.SessionOptions()
options.register_custom_ops_library(ort_aie_ep.library_path())
session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)

tokens = tokenizer.encode(prompt).ids
total = len(tokens)
# One buffer is both past and present: a step adds its rows and copies none.
shape = (1, decoder["num_key_value_heads"], total + NEW_TOKENS, decoder["head_size"])
caches = {
    entry.name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
    for entry in session.get_inputs()
    if entry.name.startswith("past_key_values")
}
text: list[int] = []
while len(text) < NEW_TOKENS:
    binding = session.io_binding()
    binding.bind_cpu_input("input_ids", np.array([tokens], np.int64))
    binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
    for name, cache in caches.items():
        binding.bind_ortvalue_input(name, cache)
        binding.bind_ortvalue_output(name.replace("past_key_values", "present"), cache)
    binding.bind_output("logits")
    session.run_with_iobinding(binding)
    logits = binding.get_outputs()[-1].numpy()
    tokens = [int(logits[0, -1].argmax())]
    text += tokens
    total += 1
print(prompt + tokenizer.decode(text))
