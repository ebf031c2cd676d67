"""Export with optimum, compile, and let ORTModelForCausalLM generate with both.

    optimum/bin/pip install ort-aie-ep  # into make_optimum_models.py's environment, or our wheel
    optimum/bin/python scripts/check_optimum.py --work WORK

For each family, as exported and in 4 bits: a left-padded batch of three prompts, greedy. Logits of
the first call must agree, and each row's text until ONNX Runtime's own is undecided. Exits with 1
where they do not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from make_optimum_models import FAMILIES, export
from optimum.onnxruntime import ORTModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from optimum_models import quantise, with_bfloat16_scales, with_int8_activations

import ort_aie_ep

LENGTHS = (19, 11, 3)
NEW_TOKENS = 24


def open_model(folder: Path, *, ours: bool) -> ORTModelForCausalLM:
    """The folder in optimum; with our operators where it is compiled."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    if ours:
        options.register_custom_ops_library(ort_aie_ep.library_path())
    return ORTModelForCausalLM.from_pretrained(folder, session_options=options)


def prompts(vocabulary: int) -> dict[str, torch.Tensor]:
    """A left-padded batch of seeded tokens."""
    rng, longest = np.random.default_rng(3), max(LENGTHS)
    mask = np.array([[0] * (longest - length) + [1] * length for length in LENGTHS])
    tokens = rng.integers(3, vocabulary, mask.shape) * mask
    return {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask)}


def generate(folder: Path, *, ours: bool) -> tuple[np.ndarray, np.ndarray]:
    """Greedy tokens (batch, NEW_TOKENS), and the logits (batch, NEW_TOKENS, vocabulary) of each."""
    model = open_model(folder, ours=ours)
    batch = prompts(model.config.vocab_size)
    result = model.generate(
        **batch,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = result.sequences[:, batch["input_ids"].shape[1] :].numpy()
    return tokens, torch.stack(result.logits, 1).numpy()


def compare(name: str, exact: Path, compiled: Path, tolerance: float) -> bool:
    """Prints how far the two agree; whether that is as far as they should."""
    expected, reference = generate(exact, ours=False)
    actual, logits = generate(compiled, ours=True)
    same = steps = 0
    good, worst = True, 0.0
    for row in range(len(LENGTHS)):
        for step in range(expected.shape[1]):
            steps += 1
            # Up to here both rows read the same tokens.
            worst = max(worst, float(np.abs(logits[row, step] - reference[row, step]).max()))
            if actual[row, step] == expected[row, step]:
                same += 1
                continue
            second, best = np.partition(reference[row, step], -2)[-2:]
            good &= bool(best - second <= 2 * tolerance)  # undecided, or wrong
            break
    good &= worst <= tolerance
    print(
        f"{name}: {same} of {steps} tokens the same until undecided, logits within {worst:.2g} "
        f"(tolerance {tolerance:.2g}): {'good' if good else 'WRONG'}",
        flush=True,
    )
    return good


def check(name: str, work: Path) -> bool:
    """A family, as exported and in 4 bits."""
    exported, quantised = work / "export", work / "quantised"
    export(name, exported)
    ort_aie_ep.compile(exported, work / "compiled")
    largest = float(np.abs(generate(exported, ours=False)[1]).max())
    # The order of sums in float32, as in tests/models/test_optimum_exports.py.
    tolerance = 2000 * float(np.finfo(np.float32).eps) * largest
    good = compare(f"{name}, float32", exported, work / "compiled", tolerance)
    quantise(exported, quantised)
    ort_aie_ep.compile(quantised, work / "compiled4")
    reference = generate(quantised, ours=False)[1][:, 0]
    # The yardsticks of that test, each on the prompts' next token.
    tolerance = 0.0
    for change in (with_bfloat16_scales, with_int8_activations):
        changed = generate(change(quantised, work / change.__name__), ours=False)[1][:, 0]
        tolerance += float(np.abs(changed - reference).max())
    return compare(f"{name}, 4 bits", quantised, work / "compiled4", tolerance) and good


def main() -> None:
    """Check the families named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FAMILIES))
    parser.add_argument("--work", type=Path, required=True, help="a folder to write to")
    arguments = parser.parse_args()
    os.environ["ORT_AIE_NUMERICS"] = "bf16"
    good = True
    for name in arguments.names or FAMILIES:
        work = arguments.work / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        good &= check(name, work)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
