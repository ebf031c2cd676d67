"""Export encoder-decoder models with optimum, compile their folders, and generate with both.

    optimum/bin/python lab/check_encoder_decoder.py --work WORK

Run it in the environment of check_optimum.py. It tests T5, BART and Whisper in 4 bits, with
separate and merged decoders. Logits and greedy text must agree as closely as check_optimum.py
requires. Exits with 1 if they do not.
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

import onnxruntime
import torch
from check_optimum import Text, compare, prompts
from make_optimum_models import SEED, randomise_vectors
from optimum.exporters.onnx import main_export
from optimum.onnxruntime import ORTModelForSeq2SeqLM, ORTModelForSpeechSeq2Seq
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from optimum_models import quantise, with_bfloat16_scales, with_int8_activations

import ort_aie_ep

NEW_TOKENS = 20
VOCABULARY, MEL_BINS, FRAMES = 500, 16, 3000
TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
SIZES = {
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    **HEADS,
}


@dataclass(frozen=True)
class Family:
    """A model, and how optimum exports and opens it."""

    make: Callable[[], PreTrainedModel]
    task: str
    opened_by: type[Any]


def _t5() -> PreTrainedModel:
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(**TOKENS, **sizes, decoder_start_token_id=0))


def _bart() -> PreTrainedModel:
    start = {"decoder_start_token_id": 2, "forced_eos_token_id": None}
    return BartForConditionalGeneration(BartConfig(**TOKENS, **SIZES, **start))


def _whisper() -> PreTrainedModel:
    config = WhisperConfig(
        **TOKENS, **SIZES, num_mel_bins=MEL_BINS, max_source_positions=FRAMES // 2,
        max_target_positions=64, decoder_start_token_id=1, begin_suppress_tokens=None,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config)


TEXT = "text2text-generation-with-past"
SPEECH = "automatic-speech-recognition-with-past"
FAMILIES = {
    "t5": Family(_t5, TEXT, ORTModelForSeq2SeqLM),
    "bart": Family(_bart, TEXT, ORTModelForSeq2SeqLM),
    "whisper": Family(_whisper, SPEECH, ORTModelForSpeechSeq2Seq),
}


def export(family: Family, work: Path) -> tuple[Path, Path]:
    """Folders of a seeded random model: with separate decoders, and with the merged one."""
    torch.manual_seed(SEED)
    model = family.make().eval()
    randomise_vectors(model)
    model.save_pretrained(work / "torch")
    if family.task == SPEECH:
        WhisperFeatureExtractor(feature_size=MEL_BINS).save_pretrained(work / "torch")
    folders = work / "apart", work / "merged"
    for folder, apart in zip(folders, (True, False), strict=True):
        # optimum makes the merged decoder beside its two parts.
        main_export(
            str(work / "torch"), folder, task=family.task, do_validation=False,
            no_post_process=apart,
        )  # fmt: skip
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        (folders[1] / name).unlink()
    return folders


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


def generate(family: Family, folder: Path, *, ours: bool) -> Text:
    """The text that the folder's models generate for seeded inputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    if ours:
        options.register_custom_ops_library(ort_aie_ep.library_path())
    model = family.opened_by.from_pretrained(folder, session_options=options)
    batch = prompts(VOCABULARY)
    if family.task == SPEECH:
        torch.manual_seed(SEED)
        batch = {"input_features": torch.randn(2, MEL_BINS, FRAMES)}
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


def check(name: str, work: Path) -> bool:
    """Checks a family in 4 bits."""
    family = FAMILIES[name]
    apart, merged = (
        each_file(quantise, folder, folder.with_name(f"{folder.name}4"))
        for folder in export(family, work)
    )
    expected = generate(family, apart, ours=False)
    # The yardsticks of check_optimum.py.
    tolerance = sum(
        expected.distance(
            generate(family, each_file(change, apart, work / change.__name__), ours=False)
        )
        for change in (with_bfloat16_scales, with_int8_activations)
    )
    good = True
    for folder in (apart, merged):
        compiled = folder.with_name(f"{folder.name}-compiled")
        ort_aie_ep.compile(folder, compiled)
        actual = generate(family, compiled, ours=True)
        good &= compare(f"{name}, {folder.name}", expected, actual, tolerance)
    return good


def main() -> None:
    """Check the families named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FAMILIES))
    parser.add_argument("--work", type=Path, required=True, help="write to this folder")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(FAMILIES)
    if unknown:
        parser.error(
            f"unknown family: {', '.join(sorted(unknown))}; choose from {', '.join(FAMILIES)}"
        )
    os.environ["ORT_AIE_NUMERICS"] = "bf16"
    logging.disable(logging.WARNING)  # the quantizer logs each node
    good = True
    for name in arguments.names or FAMILIES:
        work = arguments.work / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        good &= check(name, work)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
