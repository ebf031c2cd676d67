"""The options of a session, for the command line and the loop alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Target = Literal["auto", "host", "xrt", "sim"]


@dataclass(frozen=True)
class Options:
    """A user's choices for a session; what is None is the environment's, or the library's.

    Attributes:
        target: where aie operators run. sim is the modelled NPU; it needs SimPy in this Python, or
            in ORT_AIE_SIM_PYTHON. Default: ORT_AIE_TARGET, or auto.
        numerics: type of the activations. auto follows each node's accuracy_level on the host
            target and is bf16 on xrt and sim. int8 exists on the host only: with it, no projection
            runs on the NPU. Default: ORT_AIE_NUMERICS, or auto.
        threads: threads of each session. Default: ONNX Runtime's choice.
        on_device_error: what to do when an NPU is missing or fails: continue on the host, or raise
            an error. Default: ORT_AIE_ON_DEVICE_ERROR, or host.
        log: what targets report. trace writes a timeline of each step for Perfetto. Default:
            ORT_AIE_LOG, or warning.
        overlays: folders with design packages. Default: ORT_AIE_OVERLAYS.
        prompt_chunk: prompt tokens that an operator processes at a time, at most. Default:
            ORT_AIE_PROMPT_CHUNK, or the target's choice.
    """

    PANEL = "Session"

    target: Target | None = None
    numerics: Literal["auto", "bf16", "int8"] | None = None
    threads: int | None = field(default=None, metadata={"min": 1})
    on_device_error: Literal["host", "raise"] | None = None
    log: Literal["warning", "quiet", "trace"] | None = None
    overlays: str | None = field(default=None, metadata={"metavar": "DIR[:DIR]"})
    prompt_chunk: int | None = field(default=None, metadata={"min": 1, "max": 999_999_999})

    def entries(self) -> dict[str, str]:
        """The session config entries of the options that are set."""
        names = ("target", "numerics", "on_device_error", "log", "overlays", "prompt_chunk")
        options = {f"ort_aie.{name}": getattr(self, name) for name in names}
        return {name: str(value) for name, value in options.items() if value is not None}

    @contextmanager
    def environment(self) -> Iterator[None]:
        """The same options as ORT_AIE_* variables while a session is made.

        Custom ops can read session entries in ONNX Runtime 1.24 and later; in 1.23 they have only
        the environment.
        """
        names = {entry: entry.upper().replace(".", "_") for entry in self.entries()}
        before = {name: os.environ.get(name) for name in names.values()}
        os.environ.update({names[entry]: value for entry, value in self.entries().items()})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
