"""Model folders as others wrote them, read without trusting them.

Files, JSON, ONNX graphs, what genai_config.json says, sizes of well-known models, and `builder`,
which writes the graphs of onnxruntime-genai's model builder. Nothing here compiles or runs a model.
"""
