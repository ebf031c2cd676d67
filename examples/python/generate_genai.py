"""generate_genai.py FOLDER PROMPT: greedy text from onnxruntime-genai."""

import sys

import onnxruntime_genai

folder, prompt = sys.argv[1:]
model = onnxruntime_genai.Model(folder)
tokenizer = onnxruntime_genai.Tokenizer(model)
parameters = onnxruntime_genai.GeneratorParams(model)
parameters.set_search_options(max_length=35, do_sample=False)
generator = onnxruntime_genai.Generator(model, parameters)
generator.append_tokens(tokenizer.encode(prompt))
while not generator.is_done():
    generator.generate_next_token()
print(tokenizer.decode(generator.get_sequence(0)))
