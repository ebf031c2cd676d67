"""Packages of mlir-air's fused decode: what `src/targets/npu/fused_decode/package.cc` reads.

A package is a folder with `fused_decode.json` and, for each window, the overlay and the words of
its shorter context, as they were built. The manifest adds what these files do not say: the model,
the order of weights, the sizes of buffers, and which words an additional token changes by how much.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.npu.fused_decode.folder import DecodeFolder, Pair, read_folder
from ort_aie_ep.npu.fused_decode.recognition import (
    CACHE,
    ELEMENT,
    Geometry,
    check_weights,
    recognise,
)
from ort_aie_ep.npu.fused_decode.traffic import tasks_of
from ort_aie_ep.npu.fused_decode.words import DEVICE, read_build, slopes_of
from ort_aie_ep.npu.fused_decode.xclbin import kernel_of
from ort_aie_ep.npu.packages.package import replaced_folder, xclbin_uuid
from ort_aie_ep.npu.terms.errors import PackageError, StreamError
from ort_aie_ep.progress import Count, Progress

FORMAT = 1
KIND = "fused_decode"
MANIFEST = "fused_decode.json"


@dataclass(frozen=True)
class FusedDecodePackage:
    """A written package."""

    folder: Path
    manifest: dict[str, Any]


def package_overlay(
    source: Path,
    out: Path,
    *,
    model: str | None = None,
    commit: str | None = None,
    any_epsilon: bool = False,
    progress: Progress | None = None,
) -> FusedDecodePackage:
    """Package the output of mlir-air's `make compile-decode` in `source`, atomically.

    The files are written beside `out` and then renamed.

    Args:
        source: the folder.
        out: the package's folder; an existing package is replaced.
        model: the model that the overlay must be for; None: the model that its words imply.
        commit: the commit of mlir-air; None: the one checked out where `source` is, if any.
        any_epsilon: accept models whose norms have another epsilon than the overlay's.
        progress: counts windows.

    Raises:
        PackageError: files are missing, left over from other builds, damaged, for an unknown model
            or one other than `model`, or do not fit together; or `out` exists and is not a package.
    """
    folder = read_folder(source)
    windows, files, models = [], {}, set()
    count = Count(progress, len(folder.pairs))
    for pair in folder.pairs:
        count.begin(f"window of {pair.positions} tokens")
        geometry, window = _window(folder, pair)
        count.step()
        models.add(geometry.model)
        windows.append(window)
        files[window["overlay"]] = pair.overlay(pair.base_length)
        files[window["words"]] = pair.words(pair.base_length)
    if len(models) > 1:
        raise PackageError(f"{source} has windows of several models: {', '.join(sorted(models))}")
    (found,) = models
    if model is not None and model != found:
        raise PackageError(f"{source} is for {found}, not {model}")
    sizes = Geometry(found, 0).bytes()
    manifest = {
        "format": FORMAT,
        "kind": KIND,
        "model": found,
        "device": DEVICE,
        "commit": commit if commit is not None else _commit(source),
        "flags": dict(folder.flags),
        "channels": folder.channels,
        "any_epsilon": any_epsilon,
        "elements": {
            "w": [size // ELEMENT for name, size in sizes.items() if name.startswith("w")],
            "rms": sizes["rms"] // ELEMENT,
            "y": sizes["y"] // ELEMENT,
        },
        "windows": windows,
    }
    with replaced_folder(out, MANIFEST) as new:
        for name, file in files.items():
            shutil.copyfile(file, new / name)
        (new / MANIFEST).write_text(json.dumps(manifest) + "\n")
    return FusedDecodePackage(out, manifest)


def _window(folder: DecodeFolder, pair: Pair) -> tuple[Geometry, dict[str, Any]]:
    base = read_build(pair.words(pair.base_length))
    try:
        tasks = list(tasks_of(base.stream))
    except StreamError as error:
        raise PackageError(f"{base.path}: {error}") from error
    geometry = recognise(base.path, tasks, pair.positions)
    group = folder.flags.get("DECODE_WGROUP", 0)
    if group != geometry.group:
        raise PackageError(
            f"{folder.path} was built with DECODE_WGROUP={group}, but {geometry.model} has "
            f"{geometry.group or 'no'} layers in each buffer of weights"
        )
    check_weights(base.path, tasks, geometry, folder.channels)
    slopes = slopes_of(pair, base, CACHE, geometry.row_bytes)
    overlay = pair.overlay(pair.base_length)
    # Both overlays were built for the same words, except for the length.
    kernel, other = (kernel_of(pair.overlay(n)) for n in (pair.base_length, pair.positions))
    if kernel != other:
        raise PackageError(
            f"{overlay} has the kernel {kernel}, but {pair.overlay(pair.positions).name} {other}"
        )
    return geometry, {
        "positions": pair.positions,
        "overlay": f"window_{pair.positions}.xclbin",
        "uuid": xclbin_uuid(overlay),
        "kernel": kernel,
        "words": f"window_{pair.positions}.words",
        "word_count": len(base.words),
        "crc32": zlib.crc32(base.words.tobytes()),
        "base_length": pair.base_length,
        "slopes": sorted(slopes.items()),
        "kvc": geometry.bytes()["kvc"] // ELEMENT,
    }


def _commit(folder: Path) -> str | None:
    """The commit that is checked out where `folder` is; None outside of a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"],
            capture_output=True, text=True, check=False, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
