"""`ort-aie serve` without a model: all that are here, loaded as requests ask for them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import ollama
import openai
import pytest
from servers import NAME, Served, children_of, make_source, serving

from ort_aie_ep.compiler.cache import compiled_file
from ort_aie_ep.compiler.options import CompileOptions
from ort_aie_ep.errors import AieError
from ort_aie_ep.running.turns import Accepted, Turn, Usage
from ort_aie_ep.serving import models as models_module
from ort_aie_ep.serving.errors import BusyError, StoppingError, UnknownModelError
from ort_aie_ep.serving.models import Models
from ort_aie_ep.serving.offers import Offer, offered

KEPT = "Owner/Repo:small"
PROMPT = "def main(argv):"


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of models, beside a cache with one that has a name."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(model, folder / "one")
    shutil.copytree(model, folder / "broken")
    weights = next((folder / "broken").glob("*.data"))
    weights.unlink()
    with (folder / "huge.gguf").open("wb") as file:
        file.truncate(2**42)
    (folder / "notes.txt").write_text("no model")
    cache = tmp_path_factory.mktemp("cache")
    source = make_source(tmp_path_factory.mktemp("named"))
    compiled_file(source, cache, CompileOptions(), name=KEPT, whole=True).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORT_AIE_CACHE", str(cache))
        yield folder


def loaded(served: Served) -> list[str]:
    return [one["id"] for one in served.get("/v1/models").json()["data"] if one["loaded"]]


def test_models_are_loaded_as_requests_ask_for_them(folder: Path) -> None:
    with serving(None, "--models", str(folder)) as served:
        create = served.client().completions.create
        listed = {one["id"]: one for one in served.get("/v1/models").json()["data"]}
        assert {*listed} == {"one", "broken", "huge.gguf", KEPT}
        assert listed[KEPT] == listed["one"] | {"id": KEPT}
        assert (listed["one"]["context_length"], listed["one"]["chat"]) == (2048, True)
        assert loaded(served) == []
        text = create(model="one", prompt=PROMPT, max_tokens=20, temperature=0).choices[0].text
        assert loaded(served) == ["one"]
        # A model in use is not unloaded: the request for another waits, and is told so.
        running = create(model="one", prompt=PROMPT, max_tokens=1900, stream=True)
        next(running)
        (process,) = children_of(served.process.pid)
        os.kill(process, signal.SIGSTOP)
        said = []
        body = {"model": KEPT, "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as waiting:
            for line in waiting.iter_lines():
                said += [line] if line else []
                if len(said) == 1 and line:
                    os.kill(process, signal.SIGCONT)
                    running.close()
        assert said[0] == f": {KEPT} waits for requests for other models to end"
        assert said[-1] == "data: [DONE]"
        assert loaded(served) == [KEPT]
        again = create(model=f"hf.co/{KEPT}", prompt=PROMPT, max_tokens=20, temperature=0)
        assert (again.model, again.choices[0].text) == (KEPT, text)
        assert create(model="", prompt=PROMPT).model == KEPT
        # What cannot be loaded is told to those who ask, and the server lives.
        with pytest.raises(openai.BadRequestError, match="broken cannot be loaded: "):
            create(model="broken", prompt=PROMPT)
        with pytest.raises(openai.BadRequestError, match=r"huge.gguf needs about .* does not fit"):
            create(model="huge.gguf", prompt=PROMPT)
        client = ollama.Client(served.url)
        assert client.show(KEPT).capabilities == ["completion", "tools"]
        with pytest.raises(ollama.ResponseError, match=r"no model 'x' here, only .*'one'"):
            client.show("x")
        assert client.ps().models == []
        assert served.get("/health").json() == {"status": "ok", "requests": 0}


class Process:
    """In place of `Engine`: ends its turns when it is told to."""

    opened: ClassVar[list[str]] = []
    failing: ClassVar[set[str]] = set()

    def __init__(self, name: str, _: int) -> None:
        self.name, self.turns, self.ends, self.stopped = name, 0, asyncio.Event(), False

    def open(self) -> Process:
        if self.name in self.failing:
            raise AieError("it is damaged")
        self.opened.append(self.name)
        return self

    def listen(self, _: Any) -> None: ...

    async def run(self, turns: list[Turn], _: Any) -> AsyncIterator[Any]:
        if not turns:
            return
        self.turns += 1
        try:
            yield 0, Accepted(1)
            await self.ends.wait()
            yield 0, Usage("stop", 1, 0, 1)
        finally:
            self.turns -= 1

    def stop(self) -> None:
        self.stopped = True
        self.ends.set()

    def close(self) -> None:
        self.opened.append(f"-{self.name}")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which models are opened, and with a minus which are closed."""
    monkeypatch.setattr(models_module, "Engine", Process)
    monkeypatch.setattr(Process, "opened", opened := [])
    monkeypatch.setattr(Process, "failing", {"bad"})
    return opened


def models_of(most: int = 1, queue: int = 64) -> tuple[Models, dict[str, Offer]]:
    offers = {name: Offer(name, Path(name), None, 1, 0) for name in ("a", "b", "c", "bad")}
    return Models(lambda: [*offers.values()], lambda offer: offer.name, queue, most), offers


async def here() -> bool:
    return False


async def left() -> bool:
    return True


async def steps() -> None:
    """Lets everything go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0.01)


def test_the_last_used_of_several_stays(opened: list[str]) -> None:
    async def go() -> None:
        models, offers = models_of(most=2)

        async def use(name: str) -> None:
            [event async for event in models.run(offers[name], [], here)]

        for name in ("a", "b", "a", "c"):
            await use(name)
        assert opened == ["a", "b", "-b", "c"]
        assert [held.offer.name for held in models.loaded] == ["c", "a"]
        for name, found in {"": "c", "a:latest": "a", "b": "b"}.items():
            assert (await models.known(name)).name == found
        with pytest.raises(UnknownModelError):
            await models.known("d")
        with pytest.raises(AieError, match="bad cannot be loaded: it is damaged"):
            await use("bad")
        await use("c")
        assert models.turns == 0

    asyncio.run(go())


def test_requests_are_served_in_their_order_and_none_waits_for_ever(opened: list[str]) -> None:
    async def go() -> None:
        models, offers = models_of()
        ended = []

        async def ask(name: str, gone: Any = here) -> None:
            async for _, event in models.run(offers[name], [Turn("x")], gone):
                ended.extend([name] if isinstance(event, Usage) else [])

        tasks = [asyncio.create_task(ask(name)) for name in ("a", "b", "a")]
        await steps()
        assert (opened, models.turns) == (["a"], 3)
        assert models.progress(offers["b"]) == "b waits for requests for other models to end"
        await ask("b", left)
        (held,) = models.loaded
        for _ in range(3):
            (held,) = models.loaded
            held.engine.ends.set()
            await steps()
        await asyncio.gather(*tasks)
        assert ended == ["a", "b", "a"]
        assert opened == ["a", "-a", "b", "-b", "a"]
        assert models.turns == 0

    asyncio.run(go())


def test_a_model_is_unloaded_when_its_time_is_over(opened: list[str]) -> None:
    async def go() -> None:
        models, offers = models_of()
        [_ async for _ in models.run(offers["a"], [], here, keep=0.05)]
        assert models.held(offers["a"]) is not None
        [_ async for _ in models.run(offers["a"], [], here)]
        await asyncio.sleep(0.1)
        assert opened == ["a"]
        [_ async for _ in models.run(offers["a"], [], here, keep=0)]
        await steps()
        assert opened == ["a", "-a"]
        using = models.run(offers["b"], [Turn("x")], here)
        await anext(using)
        await models.unload(offers["b"])
        assert opened[2:] == ["b"]
        await using.aclose()
        await steps()
        assert opened[2:] == ["b", "-b"]

    asyncio.run(go())


def test_what_waits_is_bounded_and_ends_with_the_server(opened: list[str]) -> None:
    async def go() -> None:
        models, offers = models_of(queue=0)
        using = models.run(offers["a"], [Turn("x")], here)
        await anext(using)
        waiting = asyncio.ensure_future(anext(models.run(offers["b"], [Turn("x")], here)))
        await steps()
        with pytest.raises(BusyError, match="1 requests wait for a model"):
            await anext(models.run(offers["b"], [Turn("x")], here))
        models.stop()
        with pytest.raises(StoppingError):
            await waiting
        with pytest.raises(StoppingError):
            await anext(models.run(offers["a"], [Turn("x")], here))
        await using.aclose()
        models.close()
        assert opened == ["a", "-a"]

    asyncio.run(go())


def test_a_folder_offers_models_and_nothing_else(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(model, tmp_path / "models" / NAME)
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj-a.gguf", "b/c.gguf",
                 "d-00001-of-00002.gguf", "e.txt", "f/g.txt", ".h/i.gguf"):  # fmt: skip
        path = tmp_path / "models" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12345")
    offers = offered(tmp_path / "models")
    assert [(one.name, one.path.name) for one in offers] == [
        ("a-00001-of-00002.gguf", "a-00001-of-00002.gguf"), ("b", "c.gguf"), (NAME, NAME),
    ]  # fmt: skip
    assert [one.size for one in offers[:2]] == [10, 5]
    assert [one.about() for one in offers[:2]] == [{}, {}]
