"""The same int4 model in other engines, and all of them measured in turns.

`weights.py` reads a source folder into codes and scales; `gguf.py` and `openvino.py` write them in
their engines' formats without quantising anew. `engines.py` names the engines, which
`onnxruntime_cpu.py` (the source and its compilation), `llama_cpp.py`, `ik_llama_cpp.py` and
`openvino.py` run. `process.py` gives an engine a process of its own, where `worker.py` runs, and a
limit; `team.py` leaves out those that fail.

`runner.py` measures what `plan.py` says: speeds in interleaved `rounds.py`, several rows in a call
(`batches.py`), starts (`starts.py`, `page_cache.py`), and what context costs us (`growth.py`);
`course.py` says how long it will take. `results.py` holds the numbers. `comparisons.py`, `goals.py`
and `report.py` say what came of them, `sheets.py`, `markdown.py` and `plot.py` show it.
"""
