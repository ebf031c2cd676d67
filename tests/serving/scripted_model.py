"""A model that writes what a test says, in a folder as onnxruntime-genai's builder writes it.

The chat template ends a prompt with a token that it chooses by the messages and tools. The model,
which only looks at the last token, writes that token's script from there on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from coding_agents import AGENTS, FILE, PRINTED
from onnx import numpy_helper
from servers import DEMO, TEMPLATE
from tokenizers.pre_tokenizers import ByteLevel

from ort_aie_ep.models.shapes import Shape
from ort_aie_ep.tools.synth import synth

# Agents send up to 31,000 tokens in the demonstration model's vocabulary.
CONTEXT = 65536
_HIDDEN, _BLOCK = 256, 32
# What is said for a text that is no call.
SECOND, ENDLESS = "A second thing", "Write for ever"
_TEXTS = {
    "second": ("A second ", "turn."),
    "endless": ("On and on. ",),
    "printed": ("It printed: ", PRINTED),
    "nothing": ("It printed nothing.",),
    "file": ("I write it.\n", f"\nhello.txt\n```\n{PRINTED}\n```\n"),
}
_CALLS = {
    **dict(agent.call for agent in AGENTS if agent.call),
    "final_answer": {"answer": f"It printed: {PRINTED}"},
}
_CHOICE = f"""{{% set said = messages | tojson -%}}
{{% set names = (tools or []) | map(attribute='function.name') | list -%}}
{{% if '{SECOND}' in said %}}<|second|>
{{%- elif '{ENDLESS}' in said %}}<|endless|>
{{%- elif '{PRINTED}' in said and 'final_answer' in names %}}<|final_answer|>
{{%- elif '{PRINTED}' in said %}}<|printed|>
{{%- elif messages[-1].role == 'tool' %}}<|nothing|>
{{%- elif '{FILE}' in said %}}<|file|>
{{%- else %}}<|{{{{ names | select('in', {[*_CALLS]}) | first | default('second') }}}}|>
{{%- endif %}}"""


def make_scripted(folder: Path) -> Path:
    """The model: it calls the tool of an agent that it is offered, says what that printed, and has
    other texts for SECOND, ENDLESS and FILE."""
    texts = {**_TEXTS, **{name: _call(name, arguments) for name, arguments in _CALLS.items()}}
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    tokens = tokenizer["model"]["vocab"]
    as_token = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    # Weights of the tokens after a token. Where a call is demanded, it comes without a text before.
    after: dict[tuple[int, int], int] = {}
    for name, pieces in texts.items():
        begin, *row = range(len(tokens), len(tokens) + 1 + len(pieces))
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added = {"id": begin, "content": f"<|{name}|>", **flags, "special": True}
        tokenizer["added_tokens"].append(added)
        tokens[added["content"]] = begin
        # No merge makes these, so prompts do not have them.
        tokens |= {as_token(text)[0][0]: at for text, at in zip(pieces, row, strict=True)}
        after |= dict.fromkeys(pairwise([begin, *row]), 2)
        after |= {(begin, row[-1]): 2 if len(row) == 1 else 1}
        after |= {(row[-1], row[-1] if name == "endless" else 0): 1}
    size = -(-len(tokens) // _BLOCK) * _BLOCK
    synth(Shape("llama", _HIDDEN, _BLOCK, 1, 2, 1, _BLOCK, size, CONTEXT, tied=False), folder)
    _write_weights(folder, size, after)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((DEMO / "tokenizer_config.json").read_text())
    template = TEMPLATE.replace("# assistant\n{% endif %}", f"# assistant\n{_CHOICE}{{% endif %}}")
    settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _call(name: str, arguments: Mapping[str, object]) -> tuple[str, ...]:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"I look, by {name}. ", f"<tool_call>\n{call}\n</tool_call>"


def _write_weights(folder: Path, size: int, after: Mapping[tuple[int, int], int]) -> None:
    """Rows of the embedding are random signs, which the layer leaves as they are. A row of the head
    is the sum of the rows of the tokens before."""
    signs = np.random.default_rng(0).choice([-1, 1], (size, _HIDDEN))
    head = np.zeros_like(signs)
    for (token, following), weight in after.items():
        head[following] += weight * signs[token]
    codes = np.clip(head, -8, 7) + 8
    model = onnx.load(folder / "model.onnx")
    for one in model.graph.initializer:
        value = numpy_helper.to_array(one)
        if one.name == "model.embed_tokens.weight":
            value = signs.astype(np.float32)
        elif one.name == "lm_head.MatMul.weight_Q4":
            value = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8).reshape(value.shape)
        elif one.name.endswith("_scales"):
            silent = "o_proj" in one.name or "down_proj" in one.name
            value = np.full_like(value, 0 if silent else 0.25)
        elif "norm" in one.name:
            value = np.ones_like(value)
        one.CopyFrom(numpy_helper.from_array(value, one.name))
    (folder / "model.onnx.data").unlink()
    onnx.save(model, folder / "model.onnx")
