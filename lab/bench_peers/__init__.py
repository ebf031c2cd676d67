"""The same int4 model in other engines, all measured in interleaved rounds: see `__main__.py`.

`weights.py` reads a source folder into codes and scales; `gguf_file.py` and `openvino_engine.py`
write them in their engines' formats without requantising. `engines.py` names the engines, which
`onnxruntime_engine.py`, `llama_cpp_engine.py` and `openvino_engine.py` run. `process.py` gives each
engine its own process, where `worker.py` runs, and a time limit. `rounds.py` measures, `page.py`
shows the results, `machine.py` says where.
"""
