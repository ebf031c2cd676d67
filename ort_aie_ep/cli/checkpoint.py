"""The options of `compile` for Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.errors import AieError

_PANEL = "Hugging Face checkpoints"


class Precision(StrEnum):
    """Precisions that the model builder is asked for."""

    int4 = "int4"
    int8 = "int8"
    fp32 = "fp32"


AdapterOption = Annotated[
    Path | None,
    typer.Option(
        metavar="LORA",
        help="A peft folder with a LoRA adapter, which is merged into the weights first.",
        rich_help_panel=_PANEL,
    ),
]
PrecisionOption = Annotated[
    Precision | None,
    typer.Option(
        help="The builder's precision. fp32 is for --quantize. Default: int4.",
        rich_help_panel=_PANEL,
    ),
]
BuilderOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="An option of the builder, such as block_size=64 or algo_config=k_quant. Repeatable.",
        rich_help_panel=_PANEL,
    ),
]
BuilderPython = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="The Python that has onnxruntime-genai, torch and transformers. "
        "Default: ORT_AIE_BUILDER_PYTHON, or the Python that runs this command.",
        rich_help_panel=_PANEL,
    ),
]
BuilderEnv = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="A virtual environment for the builder. If it lacks the builder, pip installs the "
        "builder and torch into it (1.3 GB, or several with CUDA).",
        rich_help_panel=_PANEL,
    ),
]
KeepSource = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Keep the builder's model in this new folder, as a --baseline for bench and accuracy.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class CheckpointOptions:
    """The options of `compile` that only a checkpoint has."""

    adapter: Path | None
    precision: Precision | None
    builder_option: list[str] | None
    builder_python: Path | None
    builder_env: Path | None
    keep_source: Path | None

    @contextmanager
    def model(self, source: Path, destination: Path, *, quantises: bool) -> Iterator[Path]:
        """The model folder to compile: `source`, or what the builder makes of a checkpoint.

        `quantises`: whether float weights are to be quantised.
        """
        from ort_aie_ep.compiler.checkpoint.build import built_model
        from ort_aie_ep.compiler.checkpoint.options import BuildOptions
        from ort_aie_ep.models.checkpoint import is_checkpoint

        if not is_checkpoint(source):
            for name, value in vars(self).items():
                if value:
                    raise AieError(
                        f"--{name.replace('_', '-')} is for Hugging Face checkpoints (config.json "
                        f"and *.safetensors, no .onnx file), and {source} is not one"
                    )
            yield source
            return
        if quantises and self.precision is None:
            raise AieError(
                "--quantize is for float weights, and the model builder writes int4 unless it is "
                "told otherwise: pass --precision fp32 as well, or omit --quantize"
            )
        options = BuildOptions(
            (self.precision or Precision.int4).value,
            tuple(self.builder_option or ()),
            self.adapter,
        )
        with ExitStack() as built:
            with console.bar("build", "steps", "reading the checkpoint") as progress:
                folder = built.enter_context(
                    built_model(
                        source,
                        destination,
                        options,
                        python=self.builder_python,
                        environment=self.builder_env,
                        keep=self.keep_source,
                        progress=progress,
                    )
                )
            yield folder
