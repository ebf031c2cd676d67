"""`complete`: prompts of files, completed by the workers of a Ray cluster.

Ray Data keeps a pool of actors, restarts those that die, gives their parts to them again, and
reports what is done. Its own checkpoints are not used. They need tasks of one CPU each beside the
workers, to read, filter and write, which never start where each worker has all of its machine's
CPUs; and the ids that they filter by must be columns of a file, which one bad line of JSON makes
unreadable. So this process reads the prompts, and the files that workers write are the record.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ort_aie_ep
from ort_aie_ep.batch.completer import Completer, Request, Settings
from ort_aie_ep.batch.parts import Tally, attempt, begun, read_part, write_part
from ort_aie_ep.batch.prompts import digest, read_prompts
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import model_digest
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.progress import Progress
from ort_aie_ep.requirements import require, runtime_version

# How often a run begins a part. Without a limit, Ray would retry a prompt that takes more memory
# than there is for ever, and lose a worker each time.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Summary:
    """What a run did.

    Attributes:
        done: what this run completed.
        earlier: what was there before.
        workers: how many worked.
        start_seconds: until the first worker had opened the model.
        seconds: of the whole run.
    """

    done: Tally
    earlier: Tally
    workers: int
    start_seconds: float
    seconds: float

    @property
    def speed(self) -> float:
        """New tokens per second, of all workers together, after the start."""
        busy = self.seconds - self.start_seconds
        return self.done.completion_tokens / busy if busy > 0 else 0.0


def complete(
    model: str | os.PathLike[str],
    inputs: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    max_tokens: int = Settings.max_tokens,
    temperature: float = Settings.temperature,
    top_p: float = Settings.top_p,
    seed: int = Settings.seed,
    batch_size: int = Settings.batch_size,
    part_size: int = 16,
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Completes the prompts of `inputs` into the folder `output`, or those that it lacks.

    `output` gets a line of JSON for each prompt: `id`, `completion`, `prompt_tokens`,
    `completion_tokens`, `finish_reason` ("stop", "length" or "error") and `error`. A prompt that
    cannot be completed has a line with its error. `batch.parts` has the names of the files.

    Args:
        model: a folder with its tokenizer, at the same path on all machines.
        inputs: a file of JSON lines or Parquet, or a folder of them: see `batch.prompts`. This
            process alone reads them.
        output: a new folder, or that of an earlier run with the same prompts, model and settings.
            All machines must see it.
        max_tokens: largest number of new tokens of a prompt.
        temperature: 0 takes the likeliest token, otherwise it divides the logits before a draw.
        top_p: a token is drawn from the likeliest ones whose probabilities reach this sum.
        seed: of the draws.
        batch_size: texts that a worker writes at the same time.
        part_size: prompts that a worker takes at a time. A worker that dies loses at most these.
        workers: how many; by default one for each machine, or as many as fit with `threads`.
        threads: of each worker; by default all CPUs of its machine.
        address: of a Ray cluster, or "auto" for the one that this machine is part of. By default
            $RAY_ADDRESS, or a cluster of this machine alone for the time of the run. If this
            process uses Ray already, its cluster is used.
        progress: called with (prompts done, prompts to do, what is being done).

    Raises:
        AieError: there is no model or there are no prompts; `output` was begun with other ones or
            with other settings; an option is out of range; the cluster has no room for the workers;
            a worker cannot open the model or write; some prompts cost every worker its life, or
            a worker's model fails; another run writes to `output`. What has been completed is kept.
    """
    require("ort_aie_ep.batch", ("jinja2", "pyarrow", "ray"))
    began = time.monotonic()
    settings = Settings(max_tokens, temperature, top_p, seed, batch_size)
    for name, value in (("part_size", part_size), ("workers", workers), ("threads", threads)):
        if value is not None and value < 1:
            raise AieError(f"{name} must be at least 1, got {value}")
    folder, output = find_model(Path(model)).path.resolve(), Path(output).resolve()
    requests = read_prompts(Path(inputs))
    parts = [requests[i : i + part_size] for i in range(0, len(requests), part_size)]
    model_hash = model_digest(folder)
    manifest = {
        **asdict(settings),
        "part_size": part_size,
        "prompts": digest(requests),
        "model": model_hash,
        "versions": _versions(),
    }
    with begun(output, manifest):
        earlier = {part: read_part(output, part, rows) for part, rows in enumerate(parts)}
        pending = [part for part, tally in earlier.items() if tally is None]
        before = sum((tally for tally in earlier.values() if tally is not None), Tally())
        if not pending:
            return Summary(Tally(), before, 0, 0.0, time.monotonic() - began)
        total = sum(len(parts[part]) for part in pending)
        tell = progress or (lambda done, total, what: None)
        tell(0, total, "starting Ray")
        done, found, start = Tally(), set[str](), 0.0
        left, reason = {*pending}, ""
        with _cluster(address):
            pool = _pool(workers, threads, len(pending))
            tell(0, total, "opening the model")
            worker = {"model": str(folder), "digest": model_hash, "output": str(output)}
            options = {**worker, "settings": settings, "threads": pool.threads}
            for result in _results({part: parts[part] for part in pending}, pool, options):
                now = time.monotonic() - began
                if result["failure"]:
                    raise AieError(f"{result['worker']}: {result['failure']}")
                start = start or now - result["seconds"]
                found.add(result["worker"])
                reason = reason or result["reason"]
                if result["prompts"]:
                    left.discard(int(result["part"]))
                done += Tally(*(int(result[name]) for name in vars(Tally())))
                rate = done.completion_tokens / max(now - start, 1e-9)
                tell(done.prompts, total, f"{done.completion_tokens} tokens, {rate:.0f} tokens/s")
        if left:
            ids = ", ".join(f"{parts[p][0].id} to {parts[p][-1].id}" for p in sorted(left)[:5])
            why = reason or f"they ended {_ATTEMPTS} workers each"
            raise AieError(
                f"{len(left)} of {len(parts)} parts are not completed (prompts {ids}): {why}. "
                "All others are done; the same command tries these again"
            )
        return Summary(done, before, len(found), start, time.monotonic() - began)


class Recorder:
    """The actor of `complete`: completes parts and writes them.

    A failure is part of its answer, so that the user sees one line and no actor's traceback.
    """

    def __init__(
        self, model: str, digest: str, output: str, settings: Settings, threads: int
    ) -> None:
        self._output = Path(output)
        self._worker = f"{socket.gethostname()}, process {os.getpid()}"
        self._failure = ""
        try:
            if model_digest(Path(model)) != digest:
                raise AieError(f"{model} is not the same model as where the run was started")
            self._completer = Completer(model, **asdict(settings), threads=threads)
        except AieError as error:
            self._failure = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Takes one part: its number, and its requests as JSON."""
        part = int(batch["part"][0])
        requests = [Request(*fields) for fields in json.loads(batch["requests"][0])]
        start, tally, reason = time.monotonic(), Tally(), ""
        if not self._failure:
            try:
                # There already if the worker or machine that wrote it died before it could answer.
                recorded = read_part(self._output, part, requests)
                if recorded is not None:
                    tally = recorded
                elif attempt(self._output, part) <= _ATTEMPTS:
                    try:
                        done = self._completer.complete(requests)
                    except Exception as error:  # of the model: another worker may do better
                        reason = f"{self._worker}: {error}"
                    else:
                        tally = write_part(self._output, part, requests, done)
            except OSError as error:
                self._failure = f"{self._output} cannot be written: {error.strerror}"
        answer = {
            **vars(tally),
            "failure": self._failure,
            "part": part,
            "reason": reason,
            "worker": self._worker,
            "seconds": time.monotonic() - start,
        }
        return {name: [value] for name, value in answer.items()}


@dataclass(frozen=True)
class _Pool:
    """Workers, and the threads of each: the CPUs that it takes of its machine."""

    workers: int
    threads: int


def _versions() -> dict[str, str]:
    """Of the packages that a completion depends on."""
    return {"ort_aie_ep": ort_aie_ep.__version__, "onnxruntime": runtime_version()}


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Ray's cluster, for the time of a run unless this process has one already."""
    import ray

    if ray.is_initialized():
        yield
        return
    import ray.data  # it sets its loggers up

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What the user has to know is in errors of this module; Ray's session folder has all the rest.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise AieError(f"Ray cannot be started or reached at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _pool(workers: int | None, threads: int | None, parts: int) -> _Pool:
    """The workers to start, at most as many as there are parts.

    Raises:
        AieError: they do not fit.
    """
    import ray

    nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    nodes = [cpus for cpus in nodes if cpus]
    if not nodes:
        raise AieError("no machine of the Ray cluster has a CPU for workers")
    if threads is None:
        # One worker on each machine, or as many on each as `workers` needs. They all have the same
        # number of threads, so the machine with the fewest CPUs decides.
        each = -(-(workers or 1) // len(nodes))
        threads = min(nodes) // each
        room = each * len(nodes)
    else:
        room = sum(cpus // threads for cpus in nodes)
    if not threads or room < (workers or 1):
        raise AieError(f"the workers do not fit: there are machines with {nodes} CPUs")
    return _Pool(min(workers or room, parts), threads)


def _results(
    parts: dict[int, list[Request]], pool: _Pool, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """What the workers answer, in the order in which parts are done."""
    import ray

    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    rows = [
        {"part": part, "requests": json.dumps([list(vars(r).values()) for r in requests])}
        for part, requests in parts.items()
    ]
    with ray.data.DataContext.current(context):
        answers = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            Recorder,
            fn_constructor_kwargs=options,
            batch_size=1,
            num_cpus=pool.threads,
            # One part at a time: what waits at a worker cannot go to another one.
            compute=ray.data.ActorPoolStrategy(size=pool.workers, max_tasks_in_flight_per_actor=1),
        )
        yield from answers.iter_rows()
