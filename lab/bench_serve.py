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

    python lab/bench_serve.py SOURCE --agents 16 --turns 5 --shared 20000

instead has conversations that share their beginning, four at a time: in four slots, and in a slot
for each. What a turn reads beyond its own new tokens; times to the first token from the second turn
on; what the model's process holds besides its slots, relative to one shared prefix and each agent's
own tokens. Then, with --cache-dir, the first token of an agent's next turn after a restart, and how
long the files take to read, neither in the system's memory. An answer is not in the next prompt,
because HTTP has no token ids of it: as many random tokens are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bench_peers.engines import Settings, Source
from bench_peers.gguf_file import gguf_model
from bench_peers.llama_cpp_engine import llama_cpp_engine
from bench_peers.openvino_engine import ir_model
from bench_peers.weights import DecoderWeights

import ort_aie_ep
from ort_aie_ep.models.folder import find_model

CLIENTS, PROMPT, ANSWER, SHARED = 8, 200, 128, 1000
# Of a turn of an agent: at a time, tokens that are new, and written.
AT_ONCE, NEW, WRITTEN = 4, 300, 32
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

    def __init__(
        self, folder: Path, *options: str, slots: int = CLIENTS, context: int = 2048
    ) -> None:
        command = [sys.executable, "-m", "ort_aie_ep", "serve", str(folder), "--port", "0"]
        command += ["--parallel", str(slots), "--context", str(context), "--name", "model"]
        command += options
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        while not (url := re.search(r"//(\S+):(\d+)/v1$", self._process.stderr.readline())):
            if self._process.poll() is not None:
                raise SystemExit("the server has ended")
        self._host, self._port = url[1], int(url[2])

    @property
    def memory(self) -> int:
        """Bytes that the process of the model has for itself."""
        process = self._process.pid
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        said = [Path(f"/proc/{child}/status").read_text() for child in children]
        return 1024 * max(int(re.search(r"RssAnon:\s*(\d+)", one)[1]) for one in said)

    async def text(self, tokens: Sequence[int], count: int) -> tuple[float, float]:
        """Seconds to the first token of an answer, and to its end."""
        first, seconds, _ = await self.turn(tokens, count)
        return first, seconds

    async def turn(self, tokens: Sequence[int], count: int) -> tuple[float, float, int]:
        """The same, and how many tokens of the prompt were read.

        By hand, because a client that takes HTTP apart in Python takes as much time as the server,
        of the model's cores.
        """
        body = json.dumps({
            "model": "model", "prompt": tokens, "max_tokens": count, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }).encode()  # fmt: skip
        head = f"Host: {self._host}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        start, first, event = time.perf_counter(), 0.0, b""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        async for line in reader:
            if line.startswith(b"data: {"):
                event = line
                first = first or time.perf_counter() - start
        writer.close()
        usage = json.loads(event[6:] or "{}").get("usage") or {}
        if usage.get("completion_tokens") != count:
            raise SystemExit(f"{count} tokens did not come: {usage}")
        read = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        return first, time.perf_counter() - start, read

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.communicate()


def lend_tokenizer(compiled: Path) -> None:
    """Gives a model the demonstration model's tokenizer, and each further token a text: without
    one, a client would not see that it has come."""
    for file in DEMO.glob("tokenizer*"):
        shutil.copy(file, compiled)
    path = compiled / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    size = find_model(compiled).genai_config["model"]["vocab_size"]
    known = content["model"]["vocab"]
    known |= {f"Ġtoken{token}": token for token in range(len(known), size)}
    path.write_text(json.dumps(content), "utf-8")


async def gathered(texts: Sequence[Awaitable[tuple[float, float]]]) -> list[tuple[float, float]]:
    """What texts that are asked for at once take."""
    return list(await asyncio.gather(*texts))


async def measure(server: Server, random: np.random.Generator) -> dict[str, float]:
    """One round of the server."""
    found: dict[str, float] = {}
    # As `_RUN` does: what is used for the first time takes longer.
    await gathered([server.text(prompt(random, PROMPT), 2) for _ in range(CLIENTS)])
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


@dataclass(frozen=True)
class Agents:
    """Conversations, and what a server made of them: of each agent's turns, seconds to the first
    token and tokens that were read beyond the new ones; and bytes of its process."""

    prompts: list[list[int]]
    firsts: list[list[float]]
    beyond: list[list[int]]
    memory: int


async def converse(server: Server, shared: list[int], count: int, turns: int) -> Agents:
    """`count` agents of `turns` turns each, `AT_ONCE` at a time."""
    random, places = np.random.default_rng(1), asyncio.Semaphore(AT_ONCE)
    found = Agents([list(shared) for _ in range(count)], [], [], server.memory)
    await server.text(shared, 1)
    for _ in range(turns):

        async def turn(tokens: list[int]) -> tuple[float, int]:
            async with places:
                first, _, read = await server.turn(tokens, WRITTEN)
            return first, read - NEW

        for tokens in found.prompts:
            tokens += prompt(random, NEW)
        done = await asyncio.gather(*map(turn, found.prompts))
        found.firsts.append([first for first, _ in done])
        found.beyond.append([beyond for _, beyond in done])
    return replace(found, memory=server.memory - found.memory)


def cold(folder: Path) -> None:
    """Makes the system forget the files of a folder, which are on the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_agents(compiled: Path, count: int, turns: int, tokens: int) -> None:
    """Measures conversations, and prints."""
    shared = prompt(np.random.default_rng(0), tokens)
    longest = tokens + turns * NEW + WRITTEN
    kept = compiled.with_name("kept")
    later: list[float] = []
    for slots, options in ((AT_ONCE, ("--cache-dir", str(kept))), (count, ())):
        server = Server(compiled, *options, slots=slots, context=longest + NEW)
        found = asyncio.run(converse(server, shared, count, turns))
        server.close()
        later.append(statistics.median(t for turn in found.firsts[1:] for t in turn))
        beyond = [max(turn) for turn in found.beyond]
        print(f"{slots} slots: first token of a later turn {later[-1]:.3f} s; ", end="")
        print(f"at most read beyond the new tokens, by turn: {beyond}")
        if slots == AT_ONCE:
            decoder = find_model(compiled).genai_config["model"]["decoder"]
            each = 8 * math.prod(
                decoder[name] for name in
                ("num_hidden_layers", "num_key_value_heads", "head_size")
            )  # fmt: skip
            own = (tokens + count * turns * NEW) * each
            besides = found.memory - slots * longest * each
            print(f"memory besides slots: {besides / 1e6:.1f} MB; ", end="")
            print(f"one prefix and all own tokens: {own / 1e6:.1f} MB")
            agent = found.prompts[0]
    print(f"first token, {AT_ONCE} slots / {count} slots: {later[0] / later[1]:.2f}")
    cold(kept)
    start = time.perf_counter()
    size = sum(len(path.read_bytes()) for path in kept.iterdir())
    reading = time.perf_counter() - start
    cold(kept)
    server = Server(compiled, "--cache-dir", str(kept), slots=AT_ONCE, context=longest + NEW)
    agent += prompt(np.random.default_rng(2), 64)
    first, _, read = asyncio.run(server.turn(agent, 1))
    server.close()
    print(
        f"after a restart: first token of {len(agent)} tokens {first:.3f} s, {read} read; ", end=""
    )
    print(f"all {size / 1e6:.1f} MB of files take {reading:.3f} s")


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
    parser.add_argument("--agents", type=int)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--shared", type=int, default=20000)
    given = parser.parse_args()
    rounds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-serve-") as scratch:
        compiled = Path(scratch, "model")
        ort_aie_ep.compile(given.source, compiled, last_logits=True)
        lend_tokenizer(compiled)
        if given.agents:
            measure_agents(compiled, given.agents, given.turns, given.shared)
            return
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
