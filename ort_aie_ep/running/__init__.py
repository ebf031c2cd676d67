"""Text generation: prompts and text, the decoding loop, `ort-aie run`, what to do next.

Sessions come from `runtime`, input names from `models.interface`. Nothing here measures.
"""
