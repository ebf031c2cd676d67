"""`ort-aie demo`: the model that ships with the package, with and without ort_aie_ep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.generate import greedy
from ort_aie_ep.running.text import encode
from ort_aie_ep.runtime.sessions import Options
from ort_aie_ep.tools.bench import bench
from ort_aie_ep.tools.bench.agreement import Agreement, compare
from ort_aie_ep.tools.bench.measured_text import measuring_tokens
from ort_aie_ep.tools.bench.pair import open_pair

MODEL = Path(__file__).parents[2] / "demo_model"
PROMPT = "import os\nimport sys\n\nclass Server"


@dataclass(frozen=True)
class Workload:
    """The steps of the demonstration.

    Attributes:
        prompt: the prompt to complete, greedily.
        new_tokens: tokens to add to it.
        context: tokens before decoding is timed.
        decode: tokens to time.
        runs: runs to time.
    """

    prompt: str
    new_tokens: int
    context: int
    decode: int
    runs: int


@dataclass(frozen=True)
class Demonstration:
    """Both texts, and how they compare.

    Attributes:
        reference_text: text by ONNX Runtime alone, without the prompt.
        our_text: text with ort_aie_ep.
    """

    reference_text: str
    our_text: str
    agreement: Agreement
    speeds: tuple[bench.Comparison, ...]


def workload_for(folder: ModelFolder, prompt: str, new_tokens: int) -> Workload:
    """A workload that fits the model's context and takes seconds on a small model."""
    room = context_length(folder)
    return Workload(prompt, min(new_tokens, room // 2), min(256, room // 2), min(64, room // 2), 5)


def demonstrate(
    compiled: ModelFolder,
    source: ModelFolder,
    options: Options,
    workload: Workload,
    progress: Progress | None = None,
) -> Demonstration:
    """Completes the prompt on both, compares logits, then times both, alternating. `progress`
    counts runs.

    Raises:
        AieError: the prompt does not fit the model's context, or a session fails.
    """
    tokenizer = load_tokenizer(source)
    prompt = encode(tokenizer, workload.prompt)
    room = context_length(source)
    if len(prompt) + workload.new_tokens > room:
        raise AieError(
            f"a prompt of {len(prompt)} tokens and {workload.new_tokens} new ones exceed the "
            f"model's context of {room}"
        )
    pair = open_pair(compiled, source, options, room)
    timing = bench.Workload((workload.context,), workload.decode, workload.runs)
    both = (("ONNX Runtime alone", pair.reference), ("ort_aie_ep", pair.ours))
    count = Count(progress, len(both) + bench.COMPARING + timing.total())
    texts = []
    for name, decoder in both:
        count.begin(f"completing with {name}")
        tokens = list(greedy(decoder, prompt, workload.new_tokens, frozenset()))
        count.step()
        # Decoded with the prompt, because a first token may lose its leading space.
        ids = [int(token) for token in prompt]
        texts.append(tokenizer.decode(ids + tokens)[len(tokenizer.decode(ids)) :])
    count.begin("comparing logits")
    agreement = compare(pair.ours, pair.reference, prompt, workload.new_tokens)
    count.step(amount=bench.COMPARING)
    measured = measuring_tokens(source, pair.ours.vocabulary, workload.context + workload.decode)
    speeds = bench.compare_speed(bench.timed(pair), measured, timing, count)
    return Demonstration(texts[0], texts[1], agreement, speeds)
