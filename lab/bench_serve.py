"""What `ort-aie serve` makes of several clients: bench_serve.py SOURCE [--rounds 3] [--out FILE]

    ort-aie synth llama-3.2-1b SOURCE --vocab 32000
    python lab/bench_serve.py SOURCE --peers

SOURCE is a model of random weights without a tokenizer: the script compiles it, lends it the
demonstration model's tokenizer, and talks to the server in token ids over HTTP. In each round, one
after the other on the same machine:

* one client, and eight clients at once: prompts of 200 tokens and answers of 128. Eight prompts
  take eight times as long as one, so that eight clients would have at most so many times the speed
  of one, if a step with eight rows took no longer than one with a single row;
* `ort-aie run`'s loop in a process of its own, with one such text;
* eight clients at once whose prompts share their first 1,000 tokens, and eight whose do not: the
  mean time to the first token;
* a client that comes while seven others write: the time to its first token;
* with --peers, the same weights and eight such prompts: OpenVINO GenAI's
  ContinuousBatchingPipeline; and llama.cpp with eight sequences, as the time of eight prompts and
  of 128 steps with a row of each.

Prints medians over rounds, and ratios within rounds with their least and most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from bench_peers.engines import Settings, Source
from bench_peers.gguf_file import gguf_model
from bench_peers.llama_cpp_engine import llama_cpp_engine
from bench_peers.openvino_engine import ir_model
from bench_peers.weights import DecoderWeights

import ort_aie_ep
from ort_aie_ep.models.folder import find_model

CLIENTS, PROMPT, ANSWER, SHARED = 8, 200, 128, 1000
VOCABULARY = 4000  # what the demonstration model's tokenizer has
DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"

_RUN = """
import sys, time, json
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.asked import Asking
from ort_aie_ep.running.chunks import CHUNK_ALONE
from ort_aie_ep.running.loop import Loop
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.slots import open_slots
from ort_aie_ep.running.turns import Turn
from ort_aie_ep.running.writing import Writing
from ort_aie_ep.runtime.sessions import Options
from pathlib import Path
folder, prompt, count = find_model(Path(sys.argv[1])), json.loads(sys.argv[2]), int(sys.argv[3])
slots = open_slots(folder, Options(), 1, len(prompt) + count)
for _ in range(2):
    room = len(prompt) + count
    loop = Loop(slots, Asking(Prompts(folder), slots.vocabulary), room, chunk=CHUNK_ALONE)
    start = time.perf_counter()
    for _ in Writing(loop, Turn(prompt, max_tokens=count, ignore_end=True)):
        pass
    seconds = time.perf_counter() - start
print(count / seconds)
"""


def prompt(random: np.random.Generator, tokens: int) -> list[int]:
    """Random tokens of ordinary text."""
    return [int(token) for token in random.integers(300, VOCABULARY, tokens)]


class Server:
    """`ort-aie serve` in a process."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "ort_aie_ep", "serve", str(folder), "--port", "0"]
        command += ["--parallel", str(CLIENTS), "--context", "2048", "--name", "model"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        while not (url := re.search(r"(http://\S+)/v1$", self._process.stderr.readline())):
            if self._process.poll() is not None:
                raise SystemExit("the server has ended")
        self.client = httpx.AsyncClient(base_url=url[1], timeout=600)

    async def text(self, tokens: Sequence[int], count: int) -> tuple[float, float]:
        """Seconds to the first token of an answer, and to its end."""
        body = {
            "model": "model", "prompt": tokens, "max_tokens": count, "temperature": 0,
            "ignore_eos": True, "stream": True, "logprobs": 0,
        }  # fmt: skip
        start, first, pieces = time.perf_counter(), 0.0, 0
        async with self.client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    pieces += json.loads(line[6:])["choices"][0]["logprobs"] is not None
                    first = first or time.perf_counter() - start
        if pieces != count:
            raise SystemExit(f"{pieces} tokens came, not {count}")
        return first, time.perf_counter() - start

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.communicate()


async def gathered(texts: Sequence[Awaitable[tuple[float, float]]]) -> list[tuple[float, float]]:
    """What texts that are asked for at once take."""
    return list(await asyncio.gather(*texts))


async def measure(server: Server, random: np.random.Generator) -> dict[str, float]:
    """One round of the server."""
    found: dict[str, float] = {}
    first, seconds = await server.text(prompt(random, PROMPT), ANSWER)
    found["one client, tokens/s"] = ANSWER / seconds
    found["eight clients at most, tokens/s"] = (
        CLIENTS * ANSWER / (CLIENTS * first + seconds - first)
    )
    start = time.perf_counter()
    await gathered([server.text(prompt(random, PROMPT), ANSWER) for _ in range(CLIENTS)])
    found["eight clients, tokens/s"] = CLIENTS * ANSWER / (time.perf_counter() - start)
    for name, shares in (("own", False), ("shared", True)):
        system = prompt(random, SHARED)
        if shares:
            await server.text(system, 1)
        prompts = [
            [*(system if shares else prompt(random, SHARED)), *prompt(random, 20)]
            for _ in range(CLIENTS)
        ]
        firsts = [first for first, _ in await gathered([server.text(p, 2) for p in prompts])]
        found[f"first token, {name} 1,000 tokens, s"] = statistics.mean(firsts)
    others = [
        asyncio.create_task(server.text(prompt(random, 20), ANSWER)) for _ in range(CLIENTS - 1)
    ]
    await asyncio.sleep(1)
    found["first token beside seven others, s"], _ = await server.text(prompt(random, PROMPT), 2)
    await gathered(others)
    return found


class Batching:
    """OpenVINO GenAI's ContinuousBatchingPipeline on the same weights."""

    def __init__(self, source: Source) -> None:
        import openvino
        import openvino_genai

        where = str(ir_model(source).path.parent)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens, scheduler.max_num_seqs = 256, CLIENTS
        scheduler.num_kv_blocks = CLIENTS * 32
        self._openvino = openvino
        self._config = openvino_genai.GenerationConfig()
        self._config.do_sample, self._config.ignore_eos = False, True
        self._config.set_eos_token_id(0)
        self._config.max_new_tokens = ANSWER
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            where, openvino_genai.Tokenizer(where), scheduler, "CPU"
        )

    def speed(self, random: np.random.Generator) -> float:
        """Tokens per second of eight prompts."""
        prompts = [np.array([prompt(random, PROMPT)], np.int64) for _ in range(CLIENTS)]
        start = time.perf_counter()
        handles = [
            self._pipeline.add_request(number, self._openvino.Tensor(ids), self._config)
            for number, ids in enumerate(prompts)
        ]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        seconds = time.perf_counter() - start
        tokens = sum(len(handle.read_all()[0].generated_ids) for handle in handles)
        return tokens / seconds


class Sequences:
    """llama.cpp on the same weights, by its C API."""

    def __init__(self, source: Source) -> None:
        settings = Settings(len(os.sched_getaffinity(0)), PROMPT + 2 * ANSWER)
        self._engine = llama_cpp_engine(gguf_model(source), settings, sequences=CLIENTS)

    def speed(self, random: np.random.Generator) -> float:
        """Tokens per second of eight prompts."""
        prompts = CLIENTS * self._engine.run(prompt(random, PROMPT), 0).prefill_seconds
        steps = self._engine.steps_of_all(PROMPT, ANSWER)
        return CLIENTS * ANSWER / (prompts + steps)


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true")
    given = parser.parse_args()
    rounds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-serve-") as scratch:
        compiled = Path(scratch, "model")
        ort_aie_ep.compile(given.source, compiled, last_logits=True)
        for file in DEMO.glob("tokenizer*"):
            shutil.copy(file, compiled)
        peers: dict[str, Batching | Sequences] = {}
        if given.peers:
            folder = find_model(given.source)
            source = Source(folder, DecoderWeights(folder), Path(scratch))
            peers = {"OpenVINO GenAI": Batching(source), "llama.cpp": Sequences(source)}
        random = np.random.default_rng(0)
        for number in range(given.rounds):
            server = Server(compiled)
            found: dict[str, Any] = asyncio.run(measure(server, random))
            server.close()
            asked = json.dumps(prompt(random, PROMPT))
            command = [sys.executable, "-c", _RUN, str(compiled), asked, str(ANSWER)]
            found["ort-aie run, tokens/s"] = float(subprocess.check_output(command))
            for name, peer in peers.items():
                found[f"{name}, eight prompts, tokens/s"] = peer.speed(random)
            for name, value in found.items():
                rounds[name].append(value)
            print(f"round {number + 1}: {found}", file=sys.stderr)
    for name, values in rounds.items():
        print(f"{name}: {statistics.median(values):.2f}")
    pairs = [
        ("eight clients, tokens/s", "one client, tokens/s"),
        ("eight clients at most, tokens/s", "one client, tokens/s"),
        ("one client, tokens/s", "ort-aie run, tokens/s"),
        ("first token, own 1,000 tokens, s", "first token, shared 1,000 tokens, s"),
        ("eight clients, tokens/s", "OpenVINO GenAI, eight prompts, tokens/s"),
        ("eight clients, tokens/s", "llama.cpp, eight prompts, tokens/s"),
    ]
    for one, other in pairs:
        if other in rounds:
            ratios = [a / b for a, b in zip(rounds[one], rounds[other], strict=True)]
            print(
                f"{one} / {other}: {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
