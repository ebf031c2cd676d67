"""From a Hugging Face checkpoint to a model folder: onnxruntime-genai's builder in a process.

`options` are the builder's options, `interpreter` finds or makes a Python that has the builder,
`build` runs it. `run_builder.py` and `merge_adapter.py` run in that Python, which may not have this
package.
"""
