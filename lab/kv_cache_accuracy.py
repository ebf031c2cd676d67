"""Perplexity with each type of the KV cache, without any other change to the model.

    python lab/make_smollm2.py SMOLLM2
    python lab/kv_cache_accuracy.py SMOLLM2 --tokens 2000 --decode-tokens 500

This is for a source with float projections, which `ort-aie accuracy` does not support. The
projections stay on ONNX Runtime's CPU EP, and attention is compiled. Prints Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import ort_aie_ep
from ort_aie_ep.cli import console
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session
from ort_aie_ep.tools.bench import accuracy

CACHES = (None, "f16", "int8", "int4")


def main() -> None:
    """Score, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--decode-tokens", type=int, default=2_000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    source, used = find_model(options.model), Options(threads=options.threads)
    cpu = open_session(source.model, used, library=False)
    variants = [("CPU EP", Decoder(cpu, source, options.window))]
    with tempfile.TemporaryDirectory() as scratch:
        for kv in CACHES:
            name = kv or "float32"
            path = Path(scratch, name)
            with console.bar(f"compile, KV {name}", "bytes") as progress:
                folder = ort_aie_ep.compile(options.model, path, kv=kv, progress=progress).folder
            session = open_session(folder.model, used)
            variants.append((name, Decoder(session, folder, options.window)))
        workload = accuracy.Workload(options.tokens, options.decode_tokens, options.window)
        with console.bar("score", "tokens") as progress:
            report = accuracy.score(lambda: variants, source, workload, progress)
    print("| cache | mode | tokens | perplexity ratio | same |\n|---|---|---:|---|---:|")
    for score in report.scores:
        r = score.ratio
        print(
            f"| {score.variant} | {score.mode} | {score.tokens} | "
            f"{r.value:.4f} ({r.low:.4f}–{r.high:.4f}) | {100 * score.top1:.2f} % |"
        )


if __name__ == "__main__":
    main()
