"""`complete` on a Ray cluster of two machines, as far as one machine can be two: with processes and
machines that are killed in mid-run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import ort_aie_ep.batch
from ort_aie_ep.batch import complete
from ort_aie_ep.batch.completer import Completer, Request
from ort_aie_ep.errors import AieError

# Imported by what needs it: pytest collects these tests with each change and runs them in turn.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
pytest.importorskip("onnxruntime_genai")

PART, TOKENS, FEW_TOKENS = 4, 160, 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines with one CPU each."""
    from ray.cluster_utils import Cluster

    machine = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=machine)
    made.add_node(**{name: machine[name] for name in ("num_cpus", "object_store_memory")})
    yield made
    made.shutdown()


@pytest.fixture(autouse=True, scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray lets workers import from the driver's folder, where the package's sources may be."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture(scope="module")
def expected(compiled: Path, prompts: list[str]) -> list[dict[str, Any]]:
    """What one process writes without Ray."""
    return without_ray(compiled, prompts, TOKENS)


def without_ray(compiled: Path, prompts: list[str], max_tokens: int) -> list[dict[str, Any]]:
    completer = Completer(compiled, max_tokens=max_tokens)
    rows = []
    for start in range(0, len(prompts), PART):
        part = [Request(f"p{i}", prompts[i]) for i in range(start, start + PART)]
        for request, one in zip(part, completer.complete(part), strict=True):
            rows.append({"id": request.id, **vars(one)})
    return rows


def started(compiled: Path, inputs: Path, output: Path, cluster: Any) -> subprocess.Popen[str]:
    command = [
        Path(sys.executable).with_name("ort-aie"), "batch", compiled, inputs, output,
        "--max-tokens", TOKENS, "--part-size", PART, "--address", cluster.address,
    ]  # fmt: skip
    words = [str(word) for word in command]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def recorded(output: Path) -> dict[str, int]:
    """Finished parts → the inodes of their files, which are others if a part is written again."""
    return {path.name: path.stat().st_ino for path in output.glob("part-*.jsonl")}


def wait_for(what: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    while not what():
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)


def rows(output: Path) -> list[dict[str, Any]]:
    files = sorted(output.glob("part-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def workers() -> list[int]:
    """Processes of actors that complete prompts."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::MapWorker(MapBatches(Recorder"):
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.in_turn
def test_a_killed_driver_a_killed_worker_and_a_killed_machine_lose_nothing(
    compiled: Path,
    prompts: list[str],
    expected: list[dict[str, Any]],
    cluster: Any,
    tmp_path: Path,
) -> None:
    inputs, output = tmp_path / "prompts.jsonl", tmp_path / "out"
    lines = [json.dumps({"id": f"p{i}", "prompt": text}) for i, text in enumerate(prompts)]
    inputs.write_text("\n".join(lines))
    run = started(compiled, inputs, output, cluster)
    wait_for(lambda: len(recorded(output)) >= 3, run)
    run.kill()
    run.communicate()
    before = recorded(output)
    assert len(before) < len(prompts) // PART, "the driver was killed when all was done"

    run = started(compiled, inputs, output, cluster)
    wait_for(lambda: len(recorded(output)) >= len(before) + 3, run)
    os.kill(workers()[0], signal.SIGKILL)
    at_kill = recorded(output)
    wait_for(lambda: len(recorded(output)) >= len(at_kill) + 3, run)
    (machine,) = cluster.worker_nodes
    cluster.remove_node(machine, allow_graceful=False)
    at_last = recorded(output)
    assert len(at_last) < len(prompts) // PART, "the machine was killed when all was done"
    stdout, stderr = run.communicate()
    assert run.returncode == 0, stderr
    assert stdout == f"{output}: {len(prompts)} completions\n"

    assert rows(output) == expected
    assert (
        {*before.items()} <= {*at_kill.items()} <= {*at_last.items()} <= {*recorded(output).items()}
    )
    # The workers of the killed driver may each have written another part before Ray ended them.
    found = re.search(r"(\d+) prompts are complete from earlier runs\n(\d+) prompts: ", stderr)
    assert found is not None, stderr
    earlier, computed = map(int, found.groups())
    assert PART * len(before) <= earlier <= PART * (len(before) + 2)
    assert earlier + computed == len(prompts)


@pytest.fixture
def alone() -> Iterator[None]:
    """This process as the driver of a Ray of its own."""
    import ray

    ray.init(
        "local", num_cpus=1, object_store_memory=80_000_000, include_dashboard=False,
        log_to_driver=False, logging_level="ERROR",
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.mark.in_turn
def test_parquet_and_a_bad_row_in_a_process_that_uses_ray_itself(
    compiled: Path, prompts: list[str], alone: None, tmp_path: Path
) -> None:
    import pyarrow
    from pyarrow import parquet

    given = [{"id": f"p{i}", "prompt": prompts[i]} for i in range(PART)]
    given += [{"id": "empty", "prompt": ""}, {"id": "none", "prompt": None}]
    parquet.write_table(pyarrow.Table.from_pylist(given), tmp_path / "prompts.parquet")
    told: list[tuple[int, int]] = []
    summary = complete(
        compiled, tmp_path / "prompts.parquet", tmp_path / "out", max_tokens=FEW_TOKENS,
        part_size=PART, progress=lambda done, total, _: told.append((done, total)),
    )  # fmt: skip
    *good, empty, none = rows(tmp_path / "out")
    assert good == without_ray(compiled, prompts[:PART], FEW_TOKENS)
    assert (empty["error"], none["error"]) == (
        "the prompt is empty", "there is neither a prompt nor messages",
    )  # fmt: skip
    assert (summary.done.prompts, summary.done.errors, summary.earlier.prompts) == (6, 2, 0)
    assert summary.done.completion_tokens == sum(row["completion_tokens"] for row in good)
    assert told[-1] == (6, 6)
    with pytest.raises(AieError, match="max_tokens"):
        complete(compiled, tmp_path / "prompts.parquet", tmp_path / "out")
    with pytest.raises(AieError, match="workers"):
        complete(compiled, tmp_path / "prompts.parquet", tmp_path / "new", workers=9, threads=1)


@pytest.fixture
def joined(cluster: Any) -> Iterator[None]:
    """This process as a driver of the cluster."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.in_turn
def test_a_pipeline_of_ray_data_has_completer_as_its_actor(
    compiled: Path, expected: list[dict[str, Any]], prompts: list[str], joined: None
) -> None:
    given = [{"prompt": prompts[i], "mine": i} for i in range(PART)]
    import ray

    answers = ray.data.from_items(given).map_batches(
        ort_aie_ep.batch.Completer,
        fn_constructor_args=[str(compiled)],
        fn_constructor_kwargs={"max_tokens": TOKENS},
        batch_size=PART,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    found = sorted(answers.take_all(), key=lambda row: row["mine"])
    for row, one in zip(found, expected, strict=False):
        assert row == {**row, **{name: one[name] for name in one if name != "id"}}
