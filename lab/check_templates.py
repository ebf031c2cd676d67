"""Which chat templates of a folder have calls of tools that this package reads.

    python lab/check_templates.py FOLDER    # of *.jinja, such as models/templates of llama.cpp

A template passes if calls with quotes, ends of lines and nested values (two if it shows two) come
back from its own text, cut at every character, with the marks of the form as tokens and as text;
and if the grammar of the tools takes that text.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.running.answers import AnswerFormat, Tool, find_format
from ort_aie_ep.running.answers.forms import HARMONY, HOLES, CallForm
from ort_aie_ep.running.answers.messages import offered, prepared
from ort_aie_ep.running.guidance import Guides
from ort_aie_ep.running.templates import ChatTemplate

END, ASKED = "<|the end|>", "?question?"


def _schema(**properties: Any) -> dict[str, Any]:
    # Some templates need a description of each, and what else an object may have.
    described = {name: {"description": "This.", **one} for name, one in properties.items()}
    more = {"type": "string"}
    return {"type": "object", "properties": described, "required": [], "additionalProperties": more}


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
DAYS, NOW, PLACE = {"type": "integer"}, {"type": "boolean"}, _schema(x=NUMBER, name=TEXT)
NUMBERS, TEXTS = ({"type": "array", "items": one} for one in (NUMBER, TEXT))
TOOLS = [
    Tool("get_weather", "The weather.", _schema(city=TEXT, days=DAYS, now=NOW, at=PLACE)),
    Tool("add", "A sum.", _schema(terms=NUMBERS, note=TEXT, tags=TEXTS)),
]
CALLS: list[tuple[str, Any]] = [
    ("get_weather", {"city": "Köln \"am\"\n it's <b>", "days": 3, "now": True,
                     "at": {"x": 1.5, "name": "a \"b\"\n'c'"}}),
    ("add", {"terms": [1, -2.5], "note": "\tone, (two)", "tags": ["a", 'b"\n']}),
]  # fmt: skip


def main() -> None:
    """Prints the table, and how many pass."""
    passed, files = 0, sorted(Path(sys.argv[1]).glob("*.jinja"))
    print("| template | calls begin with | arguments |\n|---|---|---|")
    for file in files:
        template = ChatTemplate(file.read_text("utf-8"), {"bos_token": "<B>", "eos_token": "<E>"})
        try:
            said = checked(template)
            passed += 1
        except Exception as error:  # a template may be wrong in any way
            said = f"refused | {str(error) or type(error).__name__}"
        print(f"| {file.stem} | {said} |", flush=True)
    print(f"\n{passed} of {len(files)} pass")


def checked(template: ChatTemplate) -> str:
    """What a template's form is. Raises where it is none, or does not do what it must."""
    form = find_format(template, tokenizer_of(())).form
    if form is None:
        raise ValueError(find_format(template, tokenizer_of(())).why_not)
    calls = CALLS if form.many else CALLS[:1]
    text = written(template, form, calls)
    marks = [mark for one in form.texts for mark in re.findall(r"<[^<>\s]+>|\[[A-Z_]+\]", one)]
    for tokens in ((), tuple(dict.fromkeys(marks))):
        tokenizer = tokenizer_of(tokens)
        answers = find_format(template, tokenizer)
        follow(answers, tokenizer, text)
        for cut in range(len(text)):
            if (found := read(answers, text, cut)) != ("", calls):
                raise ValueError(f"cut at {cut}, {text!r} is read as {found}")
    if form is HARMONY:
        return "a channel | json"
    begin = json.dumps(HOLES.split(form.first)[0])[1:-1].replace("|", "\\|")
    return f"{f'`{begin}`' if begin else 'a name'} | {type(form.arguments).__name__.lower()}"


def tokenizer_of(tokens: tuple[str, ...]) -> Tokenizer:
    """A token for each byte, and others."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: at for at, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, *(AddedToken(one, normalized=False) for one in tokens)])
    return tokenizer


def written(template: ChatTemplate, form: CallForm, calls: list[tuple[str, Any]]) -> str:
    """The calls of a conversation, as the template has them."""
    asked = [
        {"id": f"call{at:05}", "type": "function", "function": {"name": name, "arguments": given}}
        for at, (name, given) in enumerate(calls)
    ]
    chat = [{"role": "user", "content": ASKED}, {"role": "assistant", "tool_calls": asked}]
    messages = prepared(form, chat, TOOLS)
    case = offered(form.offered, messages, [tool.shown for tool in TOOLS], "an example")
    text = template.render(*case, answer=False).rpartition(ASKED)[2]
    opens, last = HOLES.split(form.first)[0] or calls[0][0], HOLES.split(form.last)[-1] or "}"
    if form is HARMONY:
        opens, last = " to=functions", "}"
    return text[text.index(opens) : text.rindex(last) + len(last)]


def follow(form: AnswerFormat, tokenizer: Tokenizer, text: str) -> None:
    """Raises if the grammar of the tools does not take a text."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        model = ModelFolder(Path(folder), Path(folder) / "model.onnx", {})
        guides = Guides(model, {tokenizer.token_to_id(END), *form.ends}, 512)
    for required in (True, False):
        guide = guides.of_lark(form.grammar(TOOLS, required=required))
        allowed = np.zeros(16, np.uint32)
        for at, token in enumerate(tokenizer.encode(text + END).ids):
            guide.mask(allowed)
            if not allowed[token // 32] >> (token % 32) & 1:
                raise ValueError(f"the grammar does not take token {at} of {text!r}")
            guide.take(token)


def read(form: AnswerFormat, text: str, cut: int) -> tuple[str, list[tuple[str, Any]]]:
    """Content and calls of a text that comes in two pieces, but for tokens of their own."""
    reader, at, deltas, calls = form.reader(TOOLS), 0, [], list[list[str]]()
    names = {number: name for name, number in form.markers.items()}
    for part in form.parts(text):
        shown = part if isinstance(part, str) else names[part]
        here = min(max(cut - at, 0), len(shown)) if isinstance(part, str) else 0
        token = part if isinstance(part, int) else -1
        deltas += [reader.push(token, one) for one in (shown[:here], shown[here:]) if one]
        at += len(shown)
    deltas.append(reader.finish())
    for call in (call for delta in deltas for call in delta.calls):
        calls += [[call.name, ""]] if call.name else []
        calls[-1][1] += call.arguments
    found = [(name, json.loads(arguments)) for name, arguments in calls]
    return "".join(delta.content for delta in deltas), found


if __name__ == "__main__":
    main()
