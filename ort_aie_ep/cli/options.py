"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ort_aie_ep.runtime.sessions import Options


class Target(StrEnum):
    """Values of ort_aie.target."""

    auto = "auto"
    host = "host"
    xrt = "xrt"
    sim = "sim"


class Numerics(StrEnum):
    """Values of ort_aie.numerics."""

    auto = "auto"
    bf16 = "bf16"
    int8 = "int8"


class EraName(StrEnum):
    """Platforms whose measured costs a prediction can use."""

    papers = "papers"
    mlir_air = "mlir-air"


class KvType(StrEnum):
    """Types that `compile --kv` can give the cache."""

    f16 = "f16"
    bf16 = "bf16"
    int8 = "int8"
    int4 = "int4"


class OnDeviceError(StrEnum):
    """Values of ort_aie.on_device_error."""

    host = "host"
    raise_ = "raise"


class Log(StrEnum):
    """Values of ort_aie.log."""

    warning = "warning"
    quiet = "quiet"
    trace = "trace"


class Host(StrEnum):
    """Programs that run a model."""

    session = "session"
    genai = "genai"


Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of each session. Default: ONNX Runtime's choice.")
]
TargetOption = Annotated[
    Target | None,
    typer.Option(
        help="Where aie operators run. sim is the modelled NPU; it needs ort_aie_ep[npu] in this "
        "Python, or in the one that ORT_AIE_SIM_PYTHON names. Default: ORT_AIE_TARGET, or auto."
    ),
]
NumericsOption = Annotated[
    Numerics | None,
    typer.Option(
        help="Type of the activations. auto follows each node's accuracy_level on the host target "
        "and is bf16 on xrt and sim. int8 exists on the host only: with it, no projection runs on "
        "the NPU. Default: ORT_AIE_NUMERICS, or auto."
    ),
]
OnDeviceErrorOption = Annotated[
    OnDeviceError | None,
    typer.Option(
        help="What to do when an NPU is missing or fails: continue on the host, or raise an error. "
        "Default: ORT_AIE_ON_DEVICE_ERROR, or host."
    ),
]
LogOption = Annotated[
    Log | None,
    typer.Option(
        help="What targets report. trace writes a timeline of each step for Perfetto. "
        "Default: ORT_AIE_LOG, or warning."
    ),
]
OverlaysOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR[:DIR]", help="Folders with design packages. Default: ORT_AIE_OVERLAYS."
    ),
]
PromptChunkOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=999_999_999,
        help="Largest number of prompt tokens that an operator works on at a time. "
        "Default: ORT_AIE_PROMPT_CHUNK, or the target's choice.",
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(metavar="SRC", help="If MODEL is compiled: the model it was compiled from."),
]
Era = Annotated[
    EraName,
    typer.Option(
        "--era",
        help="Whose measured costs: of the papers (2025), or of mlir-air on a host in the profile "
        "performance (2026).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def session_options(
    target: Target | None,
    numerics: Numerics | None,
    threads: int | None,
    on_device_error: OnDeviceError | None = None,
    log: Log | None = None,
    overlays: str | None = None,
    prompt_chunk: int | None = None,
) -> Options:
    """The options as `runtime.sessions` expects them."""
    from ort_aie_ep.runtime.sessions import Options

    return Options(
        target=target and target.value,
        numerics=numerics and numerics.value,
        threads=threads,
        on_device_error=on_device_error and on_device_error.value,
        log=log and log.value,
        overlays=overlays,
        prompt_chunk=prompt_chunk,
    )
