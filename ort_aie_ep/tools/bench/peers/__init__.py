"""The same int4 model in other engines, and all of them measured in turns.

`weights.py` reads a source folder into codes and scales, `llama_cpp.py` and `openvino.py` write
them in their engines' formats without quantising anew and run them, `onnxruntime_cpu.py` runs the
source and its compilation. `process.py` gives an engine a process of its own, where `worker.py`
runs. `runner.py` measures: starts (`starts.py`, `page_cache.py`), speeds in interleaved rounds, and
what context costs us (`growth.py`). `comparisons.py`, `goals.py` and `report.py` say what came of
it, `sheets.py`, `markdown.py` and `plot.py` show it.
"""
