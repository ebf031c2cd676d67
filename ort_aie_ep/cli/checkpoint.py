"""The options of `compile` for Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ort_aie_ep.cli import console
from ort_aie_ep.compiler.checkpoint.options import BuildOptions, Precision
from ort_aie_ep.errors import AieError

if TYPE_CHECKING:
    from ort_aie_ep.hub.models import Local


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """The options of `compile` that only a checkpoint has.

    Attributes:
        adapter: a peft folder with a LoRA adapter, which is merged into the weights first.
        precision: the builder's precision. fp32 is for `quantize`. Default: int4.
        builder_option: an option of the builder, such as block_size=64 or algo_config=k_quant.
        builder_python: the Python that has onnxruntime-genai, torch and transformers. Default:
            ORT_AIE_BUILDER_PYTHON, or the Python that runs this command.
        builder_env: a virtual environment for the builder. If it lacks the builder, pip installs
            the builder and torch into it (1.3 GB, or several with CUDA).
        keep_source: keep the builder's model in this new folder, as a --baseline for bench and
            accuracy.
    """

    PANEL: ClassVar[str] = "Hugging Face checkpoints"

    adapter: Path | None = field(default=None, metadata={"metavar": "LORA"})
    precision: Precision | None = None
    builder_option: tuple[str, ...] = field(default=(), metadata={"metavar": "KEY=VALUE"})
    builder_python: Path | None = field(default=None, metadata={"metavar": "PATH"})
    builder_env: Path | None = field(default=None, metadata={"metavar": "DIR"})
    keep_source: Path | None = field(default=None, metadata={"metavar": "DIR"})

    @contextmanager
    def model(self, given: Local, destination: Path, *, quantises: bool) -> Iterator[Path]:
        """The model to compile: `given`, or what the builder makes of a checkpoint.

        `quantises`: whether float weights are to be quantised.
        """
        from ort_aie_ep.compiler.checkpoint.build import built_model
        from ort_aie_ep.hub.models import require_no_code
        from ort_aie_ep.models.checkpoint import is_checkpoint

        source, shown = given.path, given.name
        if not is_checkpoint(source):
            for name, value in vars(self).items():
                if value:
                    raise AieError(
                        f"--{name.replace('_', '-')} is for Hugging Face checkpoints (config.json "
                        f"and *.safetensors, no .onnx file), and {shown or source} is not one"
                    )
            yield source
            return
        if quantises and self.precision is None:
            raise AieError(
                "--quantize is for float weights, and the model builder writes int4 unless it is "
                "told otherwise: pass --precision fp32 as well, or omit --quantize"
            )
        require_no_code(shown, self.builder_option)
        options = BuildOptions(
            self.precision or BuildOptions.precision, self.builder_option, self.adapter
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
                        shown=shown,
                        progress=progress,
                    )
                )
            yield folder
