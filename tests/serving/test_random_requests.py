"""Bodies from a generator, posted to a server that writes another text beside them."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
from random_requests import bodies, content
from servers import NAME, Served

# Others are for longer runs by hand.
SEED = int(os.environ.get("ORT_AIE_TEST_SEED", "1"))
COUNT = int(os.environ.get("ORT_AIE_TEST_REQUESTS", "100"))
TYPE = {"Content-Type": "application/json"}


def children(pid: int) -> set[str]:
    """The processes of a server: the model's is among them."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {child for task in tasks for child in task.read_text().split()}


def test_random_requests_fail_alone(served: Served) -> None:
    """None is answered with a fault of the server's, the model's process stays, and a text that is
    written beside them stays the same."""
    before, over = children(served.process.pid), Event()

    def reference() -> str:
        create = served.client().completions.create
        answer = create(model=NAME, prompt="def main(argv):", max_tokens=24, temperature=0)
        return answer.choices[0].text

    def beside() -> list[str]:
        texts = []
        while not over.is_set():
            texts.append(reference())
        return texts

    def post(number: int, path: str, body: bytes) -> tuple[int, int, str]:
        answer = httpx.post(served.url + path, content=body, headers=TYPE, timeout=60)
        return number, answer.status_code, answer.text

    assert before
    expected, faults = reference(), {}
    with ThreadPoolExecutor(4) as pool:
        other = pool.submit(beside)
        made = [(path, content(body)) for path, body in bodies(SEED, COUNT)]
        answers = [pool.submit(post, i, *each) for i, each in enumerate(made)]
        try:
            for answer in answers:
                number, status, text = answer.result()
                if status >= 500 or '"server_error"' in text:
                    faults[number] = (status, text[:300], made[number][1].decode()[:1000])
        finally:
            over.set()
    assert not faults, json.dumps(faults, indent=1)
    assert {*other.result()} == {expected}
    assert served.process.poll() is None
    assert children(served.process.pid) == before
