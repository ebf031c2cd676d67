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


class KvType(StrEnum):
    """Types that `compile --kv` gives to the cache."""

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
    int | None, typer.Option(min=1, help="Threads of a session. Default: ONNX Runtime's choice.")
]
TargetOption = Annotated[
    Target | None,
    typer.Option(
        help="Where aie operators run; sim, the modelled NPU, needs ort_aie_ep's extra [npu] in "
        "this Python, or in that of ORT_AIE_SIM_PYTHON. Default: ORT_AIE_TARGET, or auto."
    ),
]
NumericsOption = Annotated[
    Numerics | None,
    typer.Option(
        help="Activations; auto follows each node's accuracy_level on the host target and is bf16 "
        "on xrt and sim. int8 exists on the host only: with it, no projection runs on the NPU. "
        "Default: ORT_AIE_NUMERICS, or auto."
    ),
]
OnDeviceErrorOption = Annotated[
    OnDeviceError | None,
    typer.Option(
        help="When an NPU is missing or fails: go on on the host, or stop. "
        "Default: ORT_AIE_ON_DEVICE_ERROR, or host."
    ),
]
LogOption = Annotated[
    Log | None,
    typer.Option(
        help="What targets tell; trace writes a timeline of each step for Perfetto. "
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
        help="Tokens of a prompt that an operator works on at a time, at most. "
        "Default: ORT_AIE_PROMPT_CHUNK, or what the target finds best.",
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(metavar="SRC", help="For a compiled MODEL: the model it was compiled from."),
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
    """The options as the rest of the package takes them."""
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
