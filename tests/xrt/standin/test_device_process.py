"""The modelled NPU's process, without the stand-in of XRT in front of it."""

from __future__ import annotations

import io
import json
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from json_mutations import mutations
from standin_inputs import ORDER, matvec, words

from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.modelled_npu.device_process import DeviceProcess, serve, write_packages
from ort_aie_ep.npu.packages.package import (
    PackageError,
    read_package,
    xclbin_uuid,
)  # fmt: skip
from ort_aie_ep.npu.packages.simulated import read_simulated_overlay, write_simulated_packages
from ort_aie_ep.npu.terms.device import device

PAGE = 4096


class Host:
    """Plays the stand-in's part: buffers in the memory, requests by offsets."""

    def __init__(self, name: str = "npu2") -> None:
        self.memory = np.full(256 * PAGE, 0xFF, np.uint8)
        self.process = DeviceProcess(device(name), self.memory)
        self._end = 0

    def place(self, data: npt.NDArray[np.generic]) -> list[int]:
        span = [self._end, data.nbytes]
        self.memory[self._end : self._end + data.nbytes] = data.reshape(-1).view(np.uint8)
        self._end += -(-data.nbytes // PAGE) * PAGE
        return span

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.process.answer({"op": op, **fields})

    def load(self, package: Path, uuid: str | None = None) -> dict[str, Any]:
        overlay = package / "overlay.xclbin"
        return self.ask("load", overlay=str(overlay), uuid=uuid or xclbin_uuid(overlay))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    write_packages(folder, device("npu2"))
    return folder


class Matvec:
    """The matvec of fused_dqp on a host."""

    def __init__(self, host: Host, package: Path) -> None:
        self.host = host
        self.kernel = read_package(package).manifest["kernel"]
        buffers, self.expected, _, _ = matvec("npu2")
        self.arguments = [host.place(buffers[name]) for name in ORDER]
        self.words = self.stream(words("npu2"))
        reply = host.load(package)
        assert reply["ok"], reply
        self.context = reply["context"]

    def stream(self, stream: npt.NDArray[np.uint32]) -> list[int]:
        offset, size = self.host.place(stream)
        return [offset, size // 4]

    def run(self, stream: list[int] | None = None, **fields: Any) -> dict[str, Any]:
        return self.host.ask(
            "run", context=self.context, kernel=self.kernel, words=stream or self.words,
            arguments=self.arguments, **fields,
        )  # fmt: skip

    @property
    def result(self) -> npt.NDArray[np.generic]:
        offset, size = self.arguments[3]
        return self.host.memory[offset : offset + size].view(self.expected.dtype)

    @property
    def right(self) -> bool:
        return self.result.tobytes() == self.expected.tobytes()


def test_packages_that_fit_are_kept_and_others_replaced(packages: Path, tmp_path: Path) -> None:
    shutil.copytree(packages, tmp_path, dirs_exist_ok=True)
    kept = (tmp_path / "gemm" / "overlay.xclbin").stat().st_ino
    other = fused_dqp.build(device("npu2"), 2)  # like one from another version of the library
    write_simulated_packages(tmp_path, {"fused_dqp": other})
    before = xclbin_uuid(tmp_path / "fused_dqp" / "overlay.xclbin")
    names = write_packages(tmp_path, device("npu2"))
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    assert (tmp_path / "gemm" / "overlay.xclbin").stat().st_ino == kept
    assert xclbin_uuid(tmp_path / "fused_dqp" / "overlay.xclbin") != before


def test_nonsense_is_an_error_and_the_array_is_configured_anew(packages: Path) -> None:
    host = Host()
    run = Matvec(host, packages / "fused_dqp")
    poison = host.place(np.full(16, 0xFFFFFFFF, np.uint32))
    for stream in ([poison[0], 16], [host.memory.size - 4, 2], [-4, 2], [0, 0]):
        reply = run.run(stream)
        assert (reply["ok"], reply["kind"]) == (False, "error"), stream
    assert "hello, load" in host.ask("fly")["error"]
    assert run.run()["ok"]
    assert run.right


def test_overlays_that_cannot_be_loaded(packages: Path, tmp_path: Path) -> None:
    good = packages / "fused_dqp" / "overlay.xclbin"
    uuid, data = xclbin_uuid(good), good.read_bytes()

    def load(changed: bytes, said: str = uuid) -> str:
        (tmp_path / "overlay.xclbin").write_bytes(changed)
        reply = Host().load(tmp_path, said)
        assert not reply["ok"]
        return str(reply["error"])

    assert "length" in load(data[:-1])
    assert "axlf" in load(b"xclbin3" + data[7:])
    assert "content" in load(data.replace(b"fused_dqp", b"fused_dqq"))
    assert "damaged" in load(data.replace(b'{"simulated"', b'{"simulate_"'))
    assert "registered" in load(data, "00000000-0000-0000-0000-000000000000")
    real = bytearray(data)
    struct.pack_into("<I", real, 456, 32)  # AIE_PARTITION
    assert "real NPU" in load(bytes(real))
    with pytest.raises(PackageError, match="real NPU"):
        read_simulated_overlay(tmp_path / "overlay.xclbin")
    other = fused_dqp.build(device("npu2"), 2)
    (package,) = write_simulated_packages(tmp_path, {"fused_dqp": other})
    reply = Host().load(package.folder)
    assert "version" in reply["error"]
    wide = Host("npu2_2col").load(packages / "fused_dqp")
    assert "8 columns; npu2_2col" in wide["error"]


def test_a_host_that_is_gone_ends_the_process_without_a_word(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with (tmp_path / "memory").open("wb+") as memory, theirs:
        memory.truncate(PAGE)
        numbers = theirs.fileno(), memory.fileno()
        ours.sendall(b'{"op": "hello"}\n')
        ours.close()  # before the process can answer
        done = subprocess.run(
            [sys.executable, "-P", "-m", "ort_aie_ep.modelled_npu", "--device", "npu2",
             "--socket", str(numbers[0]), "--memory", str(numbers[1])],
            pass_fds=numbers, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_damaged_requests_are_answered(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # in case a changed folder name leads there
    host = Host()
    package = packages / "fused_dqp"
    run = Matvec(host, package)
    overlay = package / "overlay.xclbin"
    requests = [
        {"op": "run", "context": run.context, "words": run.words, "arguments": run.arguments},
        {"op": "load", "overlay": str(overlay), "uuid": xclbin_uuid(overlay), "wrong": False},
        {"op": "release", "context": 7},
    ]
    lines = [
        data.decode("utf-8", "replace").replace("\n", " ")
        for request in requests
        for data in mutations(json.dumps(request), seed=13, count=60)
    ]
    written = io.StringIO()
    serve(host.process, io.StringIO("".join(line + "\n" for line in lines)), written)
    replies = [json.loads(line) for line in written.getvalue().splitlines()]
    assert len(replies) == len(lines)
    assert all(reply["ok"] or reply["error"] for reply in replies)
    reply = run.run()
    assert reply["ok"] or "a context that is loaded" in reply["error"]
