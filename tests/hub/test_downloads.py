"""Downloads by the real huggingface_hub: resumed, verified, offline, refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
from hubs import Hub
from model_folders import DATA

from ort_aie_ep import disk
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub import fetch
from ort_aie_ep.hub.folder import forget
from ort_aie_ep.hub.models import find, local
from ort_aie_ep.hub.names import Name

LLAMA = DATA / "llama"
WEIGHTS = "model.onnx.data"


@pytest.fixture
def llama(hub: Hub) -> Hub:
    hub.add("me/llama", LLAMA)
    hub.add("me/llama", {"README.md": b"hello", "modeling_llama.py": b"raise SystemExit"})
    return hub


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_download_has_the_files_that_are_needed_and_happens_once(llama: Hub) -> None:
    said: list[str] = []
    told: list[tuple[int, int, str]] = []
    model = local("me/llama", lambda *how: told.append(how), said.append)
    there = files(model.path)
    assert there.keys() == files(LLAMA).keys()
    assert there[WEIGHTS] == (LLAMA / WEIGHTS).read_bytes()
    (line,) = said
    assert "513.9 kB to download" in line
    size = sum(path.stat().st_size for path in LLAMA.iterdir())
    downloaded = [done for done, total, what in told if not what.startswith("verifying")]
    assert downloaded == sorted(downloaded)
    assert downloaded[-1] == told[-1][0] == told[-1][1] == size
    llama.requests.clear()
    assert local("me/llama", said.append, said.append) == model
    assert not llama.downloads()
    assert len(said) == 1


def test_onnx_runtime_reads_the_weights_of_what_is_downloaded(llama: Hub) -> None:
    model = local("me/llama").path / "model.onnx"
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert session.get_inputs()
    # Hard links, not a second copy.
    assert model.with_name(WEIGHTS).stat().st_nlink == 2


def test_without_hard_links_the_weights_are_links(
    llama: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "not here")

    monkeypatch.setattr(os, "link", refuse)
    folder = local("me/llama").path
    assert (folder / WEIGHTS).is_symlink()
    assert (folder / WEIGHTS).read_bytes() == (LLAMA / WEIGHTS).read_bytes()
    (folder / WEIGHTS).resolve().unlink()  # as `hf cache rm` does
    assert (local("me/llama").path / WEIGHTS).is_file()


def test_a_connection_that_breaks_is_taken_up_where_it_ended(
    llama: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What huggingface_hub writes at a time; it loses the last of them, of 10 MB by default.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)
    llama.breaks[WEIGHTS] = 200_000
    with pytest.raises(AieError, match="continues the download"):
        local("me/llama")
    folder = fetch.cached(Name("me", "llama"))
    assert not (folder / "ort_aie_ep").exists()
    llama.breaks.clear()
    llama.requests.clear()
    found = find("me/llama")
    assert found is not None
    assert (
        found.left
        == sum(path.stat().st_size for path in LLAMA.iterdir())
        - 200_000
        - (LLAMA / "model.onnx").stat().st_size
    )
    assert files(local("me/llama").path)[WEIGHTS] == (LLAMA / WEIGHTS).read_bytes()
    assert [range_ for _, path, range_ in llama.requests if path.endswith(WEIGHTS) and range_] == [
        "bytes=200000-"
    ]


@pytest.mark.parametrize("changed", [WEIGHTS, "model.onnx", "tokenizer.json"])
def test_a_wrong_hash_is_an_error_and_the_file_is_gone(llama: Hub, changed: str) -> None:
    llama.changed.add(changed)
    with pytest.raises(AieError, match=f"{changed} does not match the hash"):
        local("me/llama")
    llama.changed.clear()
    assert files(local("me/llama").path)[changed] == (LLAMA / changed).read_bytes()


def test_what_others_downloaded_is_used_and_verified(llama: Hub) -> None:
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download("me/llama"))
    llama.requests.clear()
    local("me/llama")
    assert not llama.downloads()
    forget(Name("me", "llama"))
    blob = (folder / WEIGHTS).resolve()
    blob.write_bytes(bytes(blob.stat().st_size))
    with pytest.raises(AieError, match="was removed"):
        local("me/llama")


def test_offline_what_was_downloaded_opens_and_nothing_is_asked(
    llama: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = local("me/llama")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    llama.requests.clear()
    assert local("me/llama") == model
    assert local(f"me/llama@{llama.commit('me/llama')}").path == model.path
    with pytest.raises(AieError, match="unset HF_HUB_OFFLINE"):
        local("me/other")
    assert not llama.requests


# Everything that opens a model, in a process of its own.
OPENED = """
from typer.testing import CliRunner
import ort_aie_ep
from ort_aie_ep.cli import app

for words in (["doctor", "me/llama"], ["run", "me/llama", "import os", "--max-tokens", "4"]):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
for name in ("me/llama", "me/opened"):
    print(ort_aie_ep.session(name).get_outputs()[0].name)
"""


def test_a_complete_cache_that_cannot_be_written_opens_offline(llama: Hub) -> None:
    from huggingface_hub import constants, snapshot_download

    snapshot_download("me/llama")
    llama.add("me/opened", LLAMA)
    local("me/opened")
    cache = constants.HF_HUB_CACHE
    shutil.rmtree(Path(cache) / ".locks")
    there = sorted(Path(cache).rglob("*"))
    llama.requests.clear()
    # A mount refuses root too.
    mount = f"mount --bind {cache} {cache} && mount -o remount,ro,bind {cache} && exec "
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*unshare, mount + "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system of their own")
    environment = {**os.environ, "HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "1"}
    code = [sys.executable, "-P", "-c", OPENED]
    done = subprocess.run(
        [*unshare, mount + '"$@"', "sh", *code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["logits", "logits"]
    assert sorted(Path(cache).rglob("*")) == there
    assert not llama.requests


def test_without_a_network_what_was_downloaded_opens_with_a_note(llama: Hub) -> None:
    model = local("me/llama")
    llama.down = True
    said: list[str] = []
    assert local("me/llama", say=said.append) == model
    assert "using the earlier download" in said[0]
    with pytest.raises(AieError, match="try again when there is a network"):
        local("me/other")


def test_a_repository_that_was_renamed_is_found(llama: Hub) -> None:
    llama.renamed["old/name"] = "me/llama"
    said: list[str] = []
    assert files(local("old/name", say=said.append).path).keys() == files(LLAMA).keys()
    assert said[0] == "old/name is called me/llama now"


def gated(hub: Hub) -> None:
    hub.gated.add("me/llama")


def private(hub: Hub) -> None:
    hub.private.add("me/llama")


@pytest.mark.parametrize(
    ("given", "act", "message"),
    [
        ("me/llama", gated, r"gated: accept its terms at http://127.*/me/llama, then log in"),
        ("me/llama", private, r"neither a path .* if it is private, log in with 'hf auth login'"),
        ("me/nothing", lambda _: None, r"neither a path that exists nor a repository"),
        ("me/llama@v9", lambda _: None, r"no revision v9; it has main"),
        ("me/llama:v9", lambda _: None, r"no file, folder or GGUF type v9; its models: model\.on"),
        ("me/a--b", lambda _: None, r"neither a path that exists nor a name"),
    ],
    ids=["gated", "private", "unknown", "revision", "inside", "impossible"],
)
def test_what_the_hub_refuses_is_one_line_that_says_what_to_do(
    llama: Hub, given: str, act: Callable[[Hub], None], message: str
) -> None:
    act(llama)
    with pytest.raises(AieError, match=message) as error:
        local(given)
    assert "\n" not in str(error.value)
    assert not list(fetch.cached(Name("me", "llama")).parent.glob("models--*"))


@pytest.mark.parametrize("act", [gated, private])
def test_a_token_opens_what_is_gated_or_private(
    llama: Hub, act: Callable[[Hub], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    act(llama)
    monkeypatch.setenv("HF_TOKEN", llama.token)
    assert local("me/llama").path.is_dir()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(AieError, match="does not accept the token"):
        local("me/llama")


def test_a_disk_without_room_is_known_before(llama: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = disk.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(AieError, match=r"need 513\.9 kB.*HF_HUB_CACHE"):
        local("me/llama")
    assert not llama.downloads()


def test_huggingface_hub_reads_its_own_variables(llama: Hub, tmp_path: Path) -> None:
    code = "from ort_aie_ep.hub.models import local; print(local('me/llama').path)"
    environment = {
        **os.environ,
        "HF_ENDPOINT": llama.url,
        "HF_HUB_CACHE": str(tmp_path / "own"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN": llama.token,
        "TMPDIR": str(tmp_path),
    }
    llama.private.add("me/llama")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "own")
    assert not done.stderr  # no bars
