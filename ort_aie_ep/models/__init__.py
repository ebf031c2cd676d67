"""Model folders as others wrote them, read without trusting them.

Files, JSON, ONNX graphs, genai_config.json, tokenizers, sizes of well-known models, `corpus`, a
text that every Python has, and `builder`, which writes graphs as onnxruntime-genai's model builder
does. Nothing here compiles or runs a model.
"""
