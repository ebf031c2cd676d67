"""The command `package-overlay`: makes a package of an overlay that mlir-air built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app


@app.command("package-overlay")
def package_overlay_command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder that mlir-air's `make compile-decode` wrote."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="PACKAGE", help="Folder to write the package to.")
    ],
    model: Annotated[
        str | None, typer.Option(help="Refuse an overlay for any other model.")
    ] = None,
    commit: Annotated[
        str | None,
        typer.Option(help="Commit of mlir-air. Default: the one checked out in DIR."),
    ] = None,
    any_epsilon: Annotated[
        bool,
        typer.Option("--any-epsilon", help="Accept models whose eps is not 1e-6, such as Llama."),
    ] = False,
) -> None:
    """Package an overlay of mlir-air's fused decode, after checking it.

    DIR contains a pair of builds (decode_L2048, decode_L2047), or a pair for each window of
    `make compile-decode-windows`, and their stamps. The command finds the model and the order of
    its weights in the instruction words, and refuses builds that do not fit, with the reason. The
    package is a copy of the overlay with a manifest. Nobody has run one through ort_aie_ep on a
    device yet (docs/fused-decode.md).

    ```
    ort-aie package-overlay mlir-air/programming_examples/fused_decode \\
      --out overlays/llama-3.2-1b
    ```
    """
    from ort_aie_ep.npu.fused_decode.package import package_overlay

    with console.bar("package-overlay", "windows") as progress:
        package = package_overlay(
            folder, out, model=model, commit=commit, any_epsilon=any_epsilon, progress=progress
        )
    manifest = package.manifest
    windows = ", ".join(str(window["positions"]) for window in manifest["windows"])
    console.out.print(
        f"{package.folder}: {manifest['model']}, contexts of up to {windows} tokens",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
