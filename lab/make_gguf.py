"""GGUF files of a shape that people download, with random weights, to measure speed with.

    python lab/make_gguf.py FILE --type q4_k_m                       # llama-3.2-1b
    python lab/make_gguf.py FILE --type mxfp4 --shape gpt-oss-20b --layers 4
    python lab/make_gguf.py FILE --type q4_0 --shape lfm2-1.2b       # or qwen3.5-0.8b

A type is one for all matrices, or a mixture: q4_k_m and q4_0 as llama.cpp's quantiser divides them.
Vectors are float32; there is no vocabulary. Needs the extra gguf.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path

from gguf import GGMLQuantizationType as Kind

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gguf"))

import gguf_files

from ort_aie_ep.models.shapes import SHAPES

ARCHITECTURES = {"gptoss": "gpt-oss", "qwen3_5_text": "qwen35"}


def types_of(name: str, layers: int) -> gguf_files.Types:
    """The type of each matrix."""
    if name == "q4_k_m":
        # llama.cpp gives more bits to the first and the last eighth of the layers, and to each
        # third one between.
        more = {
            i for i in range(layers)
            if i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        }  # fmt: skip

        def mixture(stem: str) -> Kind:
            layer = re.match(r"blk\.(\d+)\.(attn_v|ffn_down)", stem)
            whole = stem in ("token_embd", "output")
            return Kind.Q6_K if whole or (layer and int(layer[1]) in more) else Kind.Q4_K

        return mixture
    if name == "q4_0":
        return lambda stem: Kind.Q6_K if stem in ("token_embd", "output") else Kind.Q4_0
    if name == "mxfp4":
        return lambda stem: Kind.MXFP4 if "_exps" in stem else Kind.Q8_0
    return lambda _: Kind[name.upper()]


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(
        prog="make_gguf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--type", required=True, metavar="TYPE")
    parser.add_argument("--shape", default="llama-3.2-1b", choices=tuple(SHAPES), metavar="SHAPE")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    given = parser.parse_args()
    shape = SHAPES[given.shape]
    shape = replace(shape, layers=given.layers or shape.layers)
    architecture = ARCHITECTURES.get(shape.family, shape.family)
    model = gguf_files.Model(architecture, shape)
    gguf_files.write(given.file, model, types_of(given.type.lower(), shape.layers))


if __name__ == "__main__":
    main()
