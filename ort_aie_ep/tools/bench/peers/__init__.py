"""The same int4 model in other engines, all measured in interleaved rounds.

`weights.py` reads a source folder into codes and scales; `gguf.py` and `openvino.py` write them in
their engines' formats without requantising. `engines.py` names the engines, which
`onnxruntime_cpu.py` (the source and its compilation), `llama_cpp.py`, `ik_llama_cpp.py` and
`openvino.py` run. `process.py` gives each engine its own process, where `worker.py` runs, and a
time limit; `team.py` leaves out those that fail.

`runner.py` measures what `plan.py` says: speeds in interleaved rounds (`rounds.py`), several rows
in a call (`batches.py`), starts (`starts.py`, `page_cache.py`), and the cost of context for
ort_aie_ep (`growth.py`); `course.py` estimates how long it will take. `results.py` holds the
numbers. `comparisons.py`, `goals.py` and `report.py` evaluate them; `sheets.py`, `markdown.py` and
`plot.py` show the results.
"""
