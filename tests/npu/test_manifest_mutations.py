"""Mutated design packages: each is read, or refused with one error that names file and field."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from json_mutations import mutations, refusal

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.bringup import streams
from ort_aie_ep.bringup.problems import shapes
from ort_aie_ep.explain.overlays import find_overlays
from ort_aie_ep.modelled_npu.device_process import Context
from ort_aie_ep.npu.packages.package import (
    MANIFEST,
    PackageError,
    build_runs,
    manifest,
    read_package,
)
from ort_aie_ep.npu.packages.simulated import write_simulated_packages
from ort_aie_ep.npu.simulator.txn import decode, format_stream
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.errors import DesignError, StreamError


@pytest.fixture(params=["fused_dqp_128", pytest.param("flow_qkv", marks=pytest.mark.in_turn)])
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    design = make_design(request.param, device("npu2_2col"))
    return write_simulated_packages(tmp_path, {request.param: design})[0].folder


def test_a_mutated_manifest_is_named_or_gives_streams(package: Path) -> None:
    """`tests/fuzz/npu_package.py` has more of them, and overlays."""
    on, path, read = device("npu2_2col"), package / MANIFEST, 0
    for data in mutations(path.read_text(), seed=13, count=150):
        path.write_bytes(data)
        said = refusal(lambda: read_package(package), PackageError)
        found = find_overlays("npu2_2col", [package.parent], [package.name])
        assert all(str(package) in refused for refused in found.refused)
        if said:
            assert said.startswith(str(path))
            continue
        read += 1
        content = read_package(package).manifest
        for sequence in content["sequences"]:
            for shape in shapes(content, on, sequence)[:2]:
                refusal(shape.make, DesignError)
                refusal(partial(_streams, content, sequence, shape.parameters), DesignError)
    assert 0 < read < 120


def _streams(content: dict[str, Any], sequence: str, parameters: dict[str, int]) -> None:
    for words in (run["words"] for run in build_runs(content, sequence, parameters)):
        streams.operations_of(words)


def test_a_mutated_stream_is_decoded_and_runs_or_is_refused() -> None:
    on = device("npu2_1col")
    design = make_design("dequant", on)
    content = json.loads(json.dumps(manifest(design)))
    (shape, *_) = shapes(content, on, "dequant")
    problem = shape.make()
    whole = streams.build_one(content, "dequant", shape.parameters)
    generator = np.random.default_rng(13)
    refused = 0
    for _ in range(150):
        words = whole.copy()
        at = int(generator.integers(len(words)))
        match generator.integers(4):
            case 0:
                words = words[:at]
            case 1:
                words[at] ^= np.uint32(1 << int(generator.integers(32)))
            case 2:
                words[at] = generator.choice([0, 1, 0x18, 0x30, 0x80000000, 0xFFFFFFFF])
            case _:
                words = np.concatenate(
                    [words[:at], words[int(generator.integers(at, len(words))) :]]
                )
        if len(words) > 3 and generator.random() < 0.7:
            words[3] = 4 * len(words)  # the header agrees
        refused += bool(refusal(lambda words=words: format_stream(decode(words)), StreamError))
        buffers = [(name, _bytes(array)) for name, array in problem.buffers.items()]
        refusal(
            lambda words=words, buffers=buffers: Context({"k": design}).run("k", words, buffers)
        )
    assert 50 < refused < 150


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()
