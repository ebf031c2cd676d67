"""The same int4 model in other engines, all measured in interleaved rounds.

`weights.py` reads a source folder into codes and scales; `gguf.py` and `openvino.py` write them in
their engines' formats without requantising. `engines.py` names the engines, which
`onnxruntime_cpu.py` (the source and its compilation), `llama_cpp.py` and `openvino.py` run.
`process.py` gives each engine its own process, where `worker.py` runs, and a time limit.

`runner.py` measures what `workload.py` says: speeds in interleaved rounds (`rounds.py`), several
rows in a call, starts, and the cost of context for ort_aie_ep. `course.py` says how long the rest
takes. `results.py` holds the numbers, `report.py` evaluates them, `sheets.py` and `plot.py` show
the results.
"""
