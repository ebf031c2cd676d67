"""Export with optimum, compile, and let optimum generate with both.

    optimum/bin/pip install 'ort_aie_ep[tools]'  # into the environment of requirements-optimum.txt
    optimum/bin/python lab/check_optimum.py --work WORK

Decoders are tested as exported and in 4 bits, encoders and decoders (T5, BART, Whisper) in 4 bits,
with separate decoders and with the merged one. Source and compiled model complete a left-padded
batch of three prompts greedily, or Whisper's seeded sounds. Logits must agree as long as both read
the same tokens, and each row's text until ONNX Runtime's own text is undecided. Exits with 1 if
they do not.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from optimum.exporters.onnx import main_export
from optimum.onnxruntime import (
    ORTModelForCausalLM,
    ORTModelForSeq2SeqLM,
    ORTModelForSpeechSeq2Seq,
)
from optimum_exports import DYNAMO, FLOAT16, OTHERS, RECORDED, SEED, export, randomise_vectors

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from optimum_models import quantise, with_bfloat16_scales, with_int8_activations

import ort_aie_ep

LENGTHS = (19, 11, 3)
NEW_TOKENS = 24

# Of the encoders' and decoders' models.
VOCABULARY, MEL_BINS, FRAMES = 500, 16, 3000
TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = {
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}


@dataclass(frozen=True)
class EncoderDecoder:
    """A model of two halves: transformers' name of it and its configuration, optimum's task, and
    the class that opens it."""

    name: str
    values: dict[str, Any]
    task: str
    opened_by: type[Any]


_TEXT = ("text2text-generation-with-past", ORTModelForSeq2SeqLM)
_SPEECH = ("automatic-speech-recognition-with-past", ORTModelForSpeechSeq2Seq)
_T5 = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
ENCODER_DECODERS = {
    "t5": EncoderDecoder("T5", {**_T5, "decoder_start_token_id": 0}, *_TEXT),
    "bart": EncoderDecoder(
        "Bart", {**SIZES, "decoder_start_token_id": 2, "forced_eos_token_id": None}, *_TEXT
    ),
    "whisper": EncoderDecoder(
        "Whisper",
        {
            **SIZES,
            "num_mel_bins": MEL_BINS,
            "max_source_positions": FRAMES // 2,
            "max_target_positions": 64,
            "decoder_start_token_id": 1,
            "begin_suppress_tokens": None,
        },
        *_SPEECH,
    ),
}


@dataclass(frozen=True)
class Text:
    """Greedy tokens (batch, NEW_TOKENS) and the logits (batch, NEW_TOKENS, vocabulary) of each."""

    tokens: np.ndarray
    logits: np.ndarray

    def common(self, other: Text) -> list[int]:
        """For each row, how many of its first tokens are the same."""
        same = np.cumprod(self.tokens == other.tokens, 1)
        return [int(row) for row in same.sum(1)]

    def distance(self, other: Text) -> float:
        """The largest difference of a logit while both read the same tokens."""
        steps = self.tokens.shape[1]
        ends = [min(row + 1, steps) for row in self.common(other)]
        rows = (np.abs(self.logits - other.logits)[i, :end].max() for i, end in enumerate(ends))
        return float(max(rows))


def prompts(vocabulary: int) -> dict[str, torch.Tensor]:
    """A left-padded batch of seeded tokens."""
    rng, longest = np.random.default_rng(3), max(LENGTHS)
    mask = np.array([[0] * (longest - length) + [1] * length for length in LENGTHS])
    tokens = rng.integers(3, vocabulary, mask.shape) * mask
    return {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask)}


def generate(folder: Path, *, ours: bool, opened_by: Any = ORTModelForCausalLM) -> Text:
    """The text that the folder's models generate; a compiled one needs ort_aie_ep's operators."""
    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = 2
    if ours:
        session.register_custom_ops_library(ort_aie_ep.library_path())
    model = opened_by.from_pretrained(folder, session_options=session)
    if opened_by is ORTModelForSpeechSeq2Seq:
        torch.manual_seed(SEED)
        batch = {"input_features": torch.randn(2, MEL_BINS, FRAMES)}
    else:
        batch = prompts(model.config.vocab_size)
    if opened_by is not ORTModelForCausalLM:
        model.generation_config.eos_token_id = None  # no row ends before the others
    result = model.generate(
        **batch,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits = torch.stack(result.logits, 1).numpy()
    return Text(result.sequences[:, -logits.shape[1] :].numpy(), logits)


def compare(name: str, expected: Text, actual: Text, tolerance: float) -> bool:
    """Prints how closely the two agree, and returns whether that is close enough."""
    distance, common = expected.distance(actual), expected.common(actual)
    good, steps = distance <= tolerance, expected.tokens.shape[1]
    for row, same in enumerate(common):
        if same < steps:
            second, best = np.partition(expected.logits[row, same], -2)[-2:]
            good &= bool(best - second <= 2 * tolerance)  # undecided, or wrong
    told = ", ".join("all" if same == steps else str(same) for same in common)
    print(
        f"{name}: same tokens until undecided: {told} of {steps}; logits within {distance:.2g}, "
        f"tolerance {tolerance:.2g}: {'good' if good else 'WRONG'}",
        flush=True,
    )
    return good


def each_file(change: Callable[[Path, Path], object], source: Path, folder: Path) -> Path:
    """Writes `folder`: applies `change`, made for a folder's model.onnx, to each .onnx file."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.onnx"))
    for file in source.glob("*.onnx"):
        before, after = folder / "before", folder / "after"
        before.mkdir()
        shutil.copyfile(file, before / "model.onnx")
        change(before, after)
        shutil.copyfile(after / "model.onnx", folder / file.name)
        shutil.rmtree(before)
        shutil.rmtree(after)
    return folder


def in_4_bits(name: str, exported: Path, opened_by: Any, *others: Path) -> bool:
    """Compares an export in 4 bits with its compilation, and with those of `others`, by the
    yardsticks of tests/models/test_optimum_exports.py: rounded scales, rounded activations."""
    source, *more = (
        each_file(quantise, folder, folder.with_name(f"{folder.name}4"))
        for folder in (exported, *others)
    )
    expected = generate(source, ours=False, opened_by=opened_by)
    tolerance = 0.0
    for change in (with_bfloat16_scales, with_int8_activations):
        rounded = each_file(change, source, source.with_name(change.__name__))
        tolerance += expected.distance(generate(rounded, ours=False, opened_by=opened_by))
    good = True
    for folder in (source, *more):
        compiled = folder.with_name(f"{folder.name}-compiled")
        ort_aie_ep.compile(folder, compiled)
        actual = generate(compiled, ours=True, opened_by=opened_by)
        good &= compare(f"{name}, {folder.name}", expected, actual, tolerance)
    return good


def check_decoder(name: str, work: Path) -> bool:
    """Checks a family, as exported and in 4 bits."""
    exported = work / "export"
    config = {**RECORDED, **OTHERS}[name]()
    half = name.endswith(FLOAT16)
    export(config, exported, dtype="fp16" if half else None, by_dynamo=name.endswith(DYNAMO))
    ort_aie_ep.compile(exported, work / "compiled")
    expected = generate(exported, ours=False)
    if half:
        # Each may be as far from the float32 export as the half-precision one is.
        export(config, work / "float32")
        tolerance = 2 * expected.distance(generate(work / "float32", ours=False))
    else:
        # For sums in another order in float32, as in tests/models/test_optimum_exports.py.
        tolerance = 2000 * float(np.finfo(np.float32).eps) * float(np.abs(expected.logits).max())
    actual = generate(work / "compiled", ours=True)
    good = compare(f"{name}, as exported", expected, actual, tolerance)
    return good if half else in_4_bits(name, exported, ORTModelForCausalLM) and good


def check_encoder_decoder(name: str, work: Path) -> bool:
    """Checks a family in 4 bits, with separate decoders and with the merged one."""
    family = ENCODER_DECODERS[name]
    torch.manual_seed(SEED)
    config = getattr(transformers, f"{family.name}Config")(**TOKENS, **family.values)
    model = getattr(transformers, f"{family.name}ForConditionalGeneration")(config).eval()
    randomise_vectors(model)
    model.save_pretrained(work / "torch")
    if family.opened_by is ORTModelForSpeechSeq2Seq:
        features = transformers.WhisperFeatureExtractor(feature_size=MEL_BINS)
        features.save_pretrained(work / "torch")
    apart, merged = work / "apart", work / "merged"
    for folder in (apart, merged):
        # optimum makes the merged decoder beside its two parts.
        main_export(
            str(work / "torch"), folder, task=family.task, do_validation=False,
            no_post_process=folder == apart,
        )  # fmt: skip
    for part in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        (merged / part).unlink()
    # The yardsticks do not reach into the bodies of the merged decoder.
    return in_4_bits(name, apart, family.opened_by, merged)


def main() -> None:
    """Check the families named on the command line, or all."""
    known = [*RECORDED, *OTHERS, *ENCODER_DECODERS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--work", type=Path, required=True, help="write to this folder")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(known)
    if unknown:
        parser.error(
            f"unknown family: {', '.join(sorted(unknown))}; choose from {', '.join(known)}"
        )
    os.environ["ORT_AIE_NUMERICS"] = "bf16"
    logging.disable(logging.WARNING)  # the quantizer logs each node
    good = True
    for name in arguments.names or known:
        work = arguments.work / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        check = check_encoder_decoder if name in ENCODER_DECODERS else check_decoder
        good &= check(name, work)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
