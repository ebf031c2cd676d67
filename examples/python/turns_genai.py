"""turns_genai.py FOLDER: a text in turns, and another second turn after rewind_to."""

import sys

import onnxruntime_genai

(folder,) = sys.argv[1:]
model = onnxruntime_genai.Model(folder)
tokenizer = onnxruntime_genai.Tokenizer(model)
parameters = onnxruntime_genai.GeneratorParams(model)
parameters.set_search_options(max_length=100, do_sample=False)
generator = onnxruntime_genai.Generator(model, parameters)


def turn(text: str) -> None:
    """Appends a text, and 12 tokens that the model writes after it."""
    tokens = list(tokenizer.encode(text))
    if written := generator.token_count():
        # The last token that was generated has not been run yet, and genai would not do it.
        tokens.insert(0, generator.get_sequence(0)[-1])
        generator.rewind_to(written - 1)
    generator.append_tokens(tokens)
    for _ in range(12):
        generator.generate_next_token()


turn("def main(argv):")
first = generator.token_count()
turn("\n\n\nclass Test")
print(tokenizer.decode(generator.get_sequence(0)))
generator.rewind_to(first)
turn("\n\n\nif __name__")
print("----")
print(tokenizer.decode(generator.get_sequence(0)))
