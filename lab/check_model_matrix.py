"""Build tiny random models of many families and options, compile them, compare their logits.

    models/bin/pip install 'ort_aie_ep[tools]'  # into the environment of requirements-models.txt
    models/bin/python lab/check_model_matrix.py builder --work WORK
    optimum/bin/pip install 'ort_aie_ep[tools]'  # into the environment of requirements-optimum.txt
    optimum/bin/python lab/check_model_matrix.py optimum --work WORK
    models/bin/python lab/check_model_matrix.py write --work WORK    # docs/model_matrix.json

For each case, the script makes the folder with the model builder or optimum. Its logits with
float32 sums are the reference. The script measures the distance of ONNX Runtime's CPU provider from
the reference, with 8-bit activations (accuracy_level 4), and the distances of the compiled model
with either numerics and of the source with the execution provider. It records them in
WORK/results/KIND/CASE.json, with the operators of the compiled model, and the nodes that were left
and why. Every case has a separate process. Cases that have a result are skipped; --again runs
them again. Exits with 1 if numbers of a case are wrong, or if it does not compile or run although
its source does. `write` makes docs/model_matrix.json, with a line for each case, and prints the
summary that docs/models.md quotes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from matrix_runs import distance, rows_of, with_accuracy_level

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from widened import in_float32

import ort_aie_ep
from ort_aie_ep.cli.progress import Status
from ort_aie_ep.graph_passes.planning import expand_plans
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.runtime.provider import NAME

MATRIX = Path(__file__).resolve().parents[1] / "docs" / "model_matrix.json"
KINDS = {"builder": "matrix_builder_models", "optimum": "matrix_optimum_models"}
VOCABULARY = 500
SECONDS = 600
# Larger than the observed values (bf16 0.3 to 1.0 and int8 0.7 to 1.6 of ONNX Runtime's own), and
# far below the value that a wrong row, mask or weight gives.
LIMIT = 2.0
# For models without quantised weights: sums in another order, in float32, through a few layers.
FLOAT_LIMIT = 1e-4

# Operators that choose experts.
ROUTERS = {"TopK", "QMoE", "MoE"}
_WHILE_RUNNING = re.compile(
    r"Error in execution: Non-zero status code returned while running (\w+) node. "
    r"Name:'[^']*' Status Message: "
)

GOOD, WRONG = "good", "WRONG"
NOT_BUILT = "not built"
SOURCE_FAILS = "ONNX Runtime fails on the source"
NOTHING = "nothing to compile"
NOT_COMPILED, NOT_RUN = "NOT COMPILED", "NOT RUN"
FAULTS = (WRONG, NOT_COMPILED, NOT_RUN)


@dataclass
class Result:
    """The result of one case.

    Attributes:
        name: the case's name.
        family: the case's family.
        status: GOOD, or what went wrong.
        detail: the first line of the error.
        theirs: distance of the source, with accuracy level 4, from the reference.
        ours: distances with "bf16" and "int8" numerics and with the "provider".
        taken: aie operators of the compiled model.
        left: other operators of the compiled model, except those that only move or shape data.
        reasons: why nodes stay, and how many nodes stay for each reason.
        notes: the notes of `compile`.
    """

    name: str
    family: str
    status: str = GOOD
    detail: str = ""
    theirs: float = 0.0
    ours: dict[str, float] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


# Operators that compute masks, positions and shapes, or move data.
UNTOLD = {
    *("Add", "And", "Cast", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Expand"),
    *("Flatten", "Gather", "GatherND", "Greater", "GreaterOrEqual", "Identity", "If", "IsNaN"),
    *("Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pad", "Range"),
    *("ReduceMax", "ReduceSum", "Reshape", "ScatterND", "Shape", "Slice", "Split", "Sqrt"),
    *("Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Cos", "Sin"),
}


def session(
    model: Path, numerics: str | None = None, *, provider: bool = False, level: int = 4
) -> Any:
    """A session on the CPU, with ort_aie_ep's operators if `numerics` is given, or the provider.

    `level` is the accuracy level of the nodes that ONNX Runtime makes of DequantizeLinear and
    MatMul.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(level))
    if numerics is not None:
        options.add_session_config_entry("ort_aie.numerics", numerics)
        if not provider:
            options.register_custom_ops_library(ort_aie_ep.library_path())
    if provider:
        devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]
        options.add_provider_for_devices(devices[:1], {"numerics": numerics or "bf16"})
        return onnxruntime.InferenceSession(str(model), options, enable_fallback=False)
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def nodes_of(model: Path) -> list[onnx.NodeProto]:
    """The nodes of the main graph."""
    return list(onnx.load(model, load_external_data=False).graph.node)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without folders of this machine."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    kind = "" if isinstance(error, ort_aie_ep.AieError) else f"{type(error).__name__}: "
    line = _WHILE_RUNNING.sub(r"\1: ", re.sub(r"/\S*/", "", lines[0]))
    return kind + line[:300]


def check(recipes: Any, case: Any, work: Path) -> Result:
    """Makes, compiles and runs a case in the empty folder `work`."""
    result = Result(case.name, case.family)
    source, compiled = work / "source", work / "compiled"
    try:
        recipes.build(case, source)
    except Exception as error:
        return _failed(result, NOT_BUILT, error, work)
    try:
        model, runs = find_model(source).model, source
        if getattr(case, "twin", ()):
            runs = work / "twin"
            recipes.build(replace(case, options=case.twin), runs)
            model = find_model(runs).model
        reference_model = in_float32(model, runs / "in_float32.onnx")
        yardstick = with_accuracy_level(model, runs / "level4.onnx", 4)
        reference = rows_of(session(reference_model, level=0), runs, VOCABULARY)
        rows = rows_of(session(yardstick), runs, VOCABULARY)
        routed = bool(ROUTERS & {n.op_type for n in nodes_of(model)})
        result.theirs = distance(rows, reference, routed=routed)
    except Exception as error:
        reference = None
        _failed(result, SOURCE_FAILS, error, work)
    finally:
        for file in runs.glob("in_float32.onnx*"):
            file.unlink()
        for file in runs.glob("level4.onnx*"):
            file.unlink()
    try:
        done = ort_aie_ep.compile(source, compiled, **case.compile)
    except ort_aie_ep.AieError as error:
        if reference is None:
            return result
        status = NOTHING if "nothing to compile" in str(error) else NOT_COMPILED
        result.reasons = dict(Counter(re.findall(r"\n  [^\n]*?: ([^\n]*)", str(error))))
        return _failed(result, status, error, work)
    except Exception as error:
        return _failed(result, NOT_COMPILED, error, work)
    result.notes = [note.replace(f"{work}/", "") for note in done.notes]
    result.reasons = dict(
        Counter(f"{o.op_type}: {o.reason}" for o in done.outcomes if o.becomes is None)
    )
    steps = load_model(find_model(compiled).model)
    expand_plans(steps)
    nodes = list(steps.graph)
    result.taken = dict(Counter(n.op_type for n in nodes if n.domain == "aie"))
    result.left = dict(
        Counter(n.op_type for n in nodes if n.domain != "aie" and n.op_type not in UNTOLD)
    )
    if reference is None:
        return result
    try:
        for numerics in ("bf16", "int8"):
            opened = session(find_model(compiled).model, numerics)
            rows = rows_of(opened, compiled, VOCABULARY)
            result.ours[numerics] = distance(rows, reference, routed=routed)
        onnxruntime.register_execution_provider_library(NAME, ort_aie_ep.library_path())
        opened = session(find_model(source).model, "bf16", provider=True)
        rows = rows_of(opened, source, VOCABULARY)
        result.ours["provider"] = distance(rows, reference, routed=routed)
    except Exception as error:
        return _failed(result, NOT_RUN, error, work)
    limit = LIMIT * result.theirs + FLOAT_LIMIT
    if not case.compile.get("quantize") and not max(result.ours.values()) <= limit:
        result.status = WRONG
    return result


def _failed(result: Result, status: str, error: BaseException, work: Path) -> Result:
    result.status, result.detail = status, first_line(error)
    with (work / "error.txt").open("a") as file:
        file.write("".join(traceback.format_exception(error)) + "\n")
    return result


def _child(kind: str, case: Any, work: Path, answer: Path) -> None:
    log = os.open(work / "log.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    result = check(importlib.import_module(KINDS[kind]), case, work)
    answer.write_text(json.dumps(asdict(result), indent=1) + "\n")


def run_case(kind: str, case: Any, work: Path, answer: Path) -> None:
    """Runs a case in its own process; if that ends without a result, this is the result."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_child, args=(kind, case, work, answer))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    if not answer.is_file():
        code = process.exitcode
        result = Result(case.name, case.family, NOT_RUN, f"the process ended with {code}")
        answer.write_text(json.dumps(asdict(result), indent=1) + "\n")


def file_name(case: str) -> str:
    """The name of the file with a case's result, without its suffix."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", case)


def told(result: dict[str, Any]) -> str:
    """A line of progress."""
    parts = [f"{k} {v:.2g}" for k, v in ratios(result).items()]
    return f"{result['name']}: {result['status']} {result['detail'][:150]} {', '.join(parts)}"


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """Distances as multiples of ONNX Runtime's own; empty for models without quantised weights."""
    if result["theirs"] <= FLOAT_LIMIT:
        return {}
    return {k: v / result["theirs"] for k, v in result["ours"].items()}


def load(results: Path, kind: str) -> list[dict[str, Any]]:
    """The results of one kind, sorted by name."""
    found = (json.loads(file.read_text()) for file in (results / kind).glob("*.json"))
    return sorted(found, key=lambda result: result["name"])


def summary(results: Path, kind: str) -> Iterator[str]:
    """What docs/models.md says about one kind, and the cases that are not good."""
    stated = json.loads((results / f"{kind}.json").read_text())
    date = stated.pop("date")
    yield ", ".join([kind, date, *(f"{name} {version}" for name, version in stated.items())])
    of_status: dict[str, list[dict[str, Any]]] = {}
    for result in load(results, kind):
        of_status.setdefault(result["status"], []).append(result)
    good = of_status.pop(GOOD, [])
    families = {result["family"] for result in load(results, kind)}
    count = len(good) + sum(map(len, of_status.values()))
    yield f"{count} folders of {len(families)} families, {len(good)} good"
    multiples = [ratios(result) for result in good]
    for numerics in ("bf16", "int8", "provider"):
        values = [found[numerics] for found in multiples if numerics in found]
        yield f"{numerics}: " + (f"{min(values):.2f} to {max(values):.2f}" if values else "–")
    for status, others in of_status.items():
        yield f"{status}: {len(others)} ({', '.join(result['name'] for result in others)})"


def write(results: Path) -> None:
    """Writes docs/model_matrix.json and prints the summaries."""
    print(*(line for kind in KINDS for line in summary(results, kind)), sep="\n")
    cases = [
        json.dumps({"from": kind, **result}, ensure_ascii=False)
        for kind in KINDS
        for result in load(results, kind)
    ]
    MATRIX.write_text("[\n" + ",\n".join(cases) + "\n]\n")


def main() -> None:
    """Run the cases named on the command line, or all of a kind; or write their results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=(*KINDS, "write"))
    parser.add_argument(
        "names", nargs="*", metavar="CASE", help="a case, or the beginning of names, followed by *"
    )
    parser.add_argument("--work", type=Path, required=True, help="write to this folder")
    parser.add_argument("--again", action="store_true", help="run cases that have a result, too")
    parser.add_argument("--keep", action="store_true", help="keep the models")
    parser.add_argument("--list", action="store_true", help="list the cases' names")
    arguments = parser.parse_intermixed_args()
    if arguments.kind == "write":
        write(arguments.work / "results")
        return
    recipes = importlib.import_module(KINDS[arguments.kind])
    torch.set_num_threads(1)
    patterns = [re.escape(n).replace(r"\*", ".*") for n in arguments.names] or [".*"]
    cases = [c for c in recipes.cases() if any(re.fullmatch(p, c.name) for p in patterns)]
    if not cases:
        parser.error(f"no such case: {', '.join(arguments.names)}")
    if arguments.list:
        print(*(case.name for case in cases), sep="\n")
        return
    answers = arguments.work / "results" / arguments.kind
    answers.mkdir(parents=True, exist_ok=True)
    stated = {name: metadata.version(name) for name in ("onnxruntime", *recipes.VERSIONS)}
    stated["date"] = time.strftime("%Y-%m-%d")
    (answers.parent / f"{arguments.kind}.json").write_text(json.dumps(stated, indent=1) + "\n")
    faults = 0
    # A status alone: a bar has a thread, and cases run in forks of this process.
    status = Status(arguments.kind, "cases")
    for number, case in enumerate(cases, 1):
        answer, work = (
            answers / f"{file_name(case.name)}.json",
            arguments.work / file_name(case.name),
        )
        if arguments.again:
            answer.unlink(missing_ok=True)
        if not answer.is_file():
            start = time.monotonic()
            status.tell(number - 1, len(cases), "", start)
            run_case(arguments.kind, case, work, answer)
            result, end = json.loads(answer.read_text()), time.monotonic()
            status.tell(number, len(cases), f"{told(result)} ({end - start:.0f} s)", end)
            print(status.line(end), flush=True)
            if not arguments.keep and result["status"] not in (*FAULTS, SOURCE_FAILS):
                shutil.rmtree(work)
        faults += json.loads(answer.read_text())["status"] in FAULTS
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
