"""The same int4 model in other engines, and all of them measured in turns.

`weights.py` reads a source folder into codes and scales, `llama_cpp.py` and `openvino.py` write
them in their engines' formats without quantising anew and run them, `onnxruntime_cpu.py` runs the
source and its compilation. `runner.py` gives each engine a process of its own and measures in
interleaved rounds; `statistics.py` and `report.py` make tables, JSON and a plot of it.
"""
