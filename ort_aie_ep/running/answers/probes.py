"""The form of a model's calls, found by what its chat template makes of calls that are known.

The same question is rendered alone, with a text for an answer, and with calls for one. What is
around the names and values of the calls is the form.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ort_aie_ep.running.answers.forms import (
    ATOMS,
    COUNT,
    ENDS,
    ID,
    NAME,
    THOUGHTS,
    TYPES,
    Braces,
    CallForm,
    Json,
    Pairs,
    common,
)
from ort_aie_ep.running.answers.messages import OFFERS, offered

if TYPE_CHECKING:
    from ort_aie_ep.running.templates import ChatTemplate

_ASKED, _SAID, _OFFERED = "probe-question", "probe-answer", "probe_offered"
_NAMES, _IDS, _LONG_IDS = ("probe_f", "probe_g"), ("probeid01", "probeid02"), ("probe-3", "probe-4")
# Arguments of each type in JSON, and a text with what is quoted or escaped somewhere.
_FIRST: dict[str, Any] = {
    "probe_string": "a <b> & \"ç\"\nit's d", "probe_integer": 48151, "probe_boolean": True,
    "probe_array": [6234, "probe-item"], "probe_object": {"inner": "probe-value"},
}  # fmt: skip
_SECOND: dict[str, Any] = {"probe_plain": "plain", "probe_null": None, "probe_number": 7.25}
PROBES = tuple(zip(_NAMES, (_FIRST, _SECOND), strict=True))
_QUESTION = {"role": "user", "content": _ASKED}
_UNKNOWN = "the model's chat template has calls of tools in a form that is not known here"
# Characters of a sample, of which some more may be in the prompt.
_MOST, _SHARED = 2**14, 2**10
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Probed:
    """What is found of a template.

    Attributes:
        form: of its calls, or None.
        why_not: why there is none.
        offer: where the template finds the tools, as in `CallForm`; empty if nowhere.
        thought: what opens and closes a thought, or None.
        says: what is around a text that is no call.
        sample: the calls of `PROBES` as the template writes them, or the first alone.
    """

    form: CallForm | None
    why_not: str = ""
    offer: str = ""
    thought: tuple[str, str] | None = None
    says: tuple[str, str] = ("", "")
    sample: str = ""


class _UnknownError(Exception):
    """The calls are in no form that is known; the text says what is not."""


def probe(template: ChatTemplate) -> Probed:
    """What the template makes of calls."""
    tools = [_tool(_OFFERED)]
    prompts = template.render_each([(*offered(n, [_QUESTION], tools), True) for n in OFFERS])
    found = [at for at, text in enumerate(prompts) if _OFFERED in text]
    offer, prompt = (OFFERS[found[0]], prompts[found[0]]) if found else ("", prompts[0])

    # As JSON in a text, or as objects; without a content, or with none; two calls, or one.
    ways = list(itertools.product((False, True), ("", None), (2, 1), (_IDS, _LONG_IDS)))
    answers: list[list[dict[str, Any]]] = [[_saying(_SAID)], [_saying(_SAID), _QUESTION]]
    answers += [[_calling(*way)] for way in ways]
    said, after, *called = template.render_each([
        (*offered(offer or "tools", [_QUESTION, *one], tools), False) for one in answers
    ])  # fmt: skip
    thought = thought_in("\n".join((template.for_tools, prompt, said, *called)))
    opens, _, end = _answer(said, prompt, thought).partition(_SAID)
    opens = opens if opens.strip() else ""
    turn = re.search(r"<[^<>\s]+>|\[[^\[\]\s]+\]", "" if opens else after.rpartition(_SAID)[2])
    why_not = ""
    for (as_text, content, count, _), text, free in zip(
        ways[::2], called[::2], called[1::2], strict=True
    ):
        if any(name not in text for name in _NAMES[:count]):
            continue
        sample = _answer(text, prompt, thought)
        try:
            form, says = _form(sample, (opens, end, turn[0] if turn else ""), count)
        except _UnknownError as error:
            why_not = why_not or f"{_UNKNOWN}: {error}"
            continue
        except (LookupError, RecursionError, ValueError):  # a template may write anything
            why_not = why_not or _UNKNOWN
            continue
        form = replace(
            form, as_text=as_text, no_content=content is None,
            offered=offer or "system",
            id_length=0 if _NAMES[0] in free else len(_IDS[0]),
        )  # fmt: skip
        return Probed(form, "", offer, thought, says, sample)
    why_not = why_not or "the model's chat template does not show calls of tools"
    return Probed(None, why_not, offer, thought, (opens, ""))


def thought_in(text: str) -> tuple[str, str] | None:
    """What opens and closes thoughts, by what a template has."""
    return next((pair for pair in THOUGHTS if pair[1] in text), None)


def _tool(name: str) -> dict[str, Any]:
    one = {"type": "string", "description": "A probe."}
    parameters = {"type": "object", "properties": {"probe": one}, "required": ["probe"]}
    about = {"name": name, "description": "A probe.", "parameters": parameters}
    return {"type": "function", "function": about}


def _saying(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _calling(
    as_text: bool, content: str | None, count: int, ids: tuple[str, str]
) -> dict[str, Any]:
    calls = [
        {"name": name, "arguments": json.dumps(given) if as_text else given}
        for name, given in PROBES[:count]
    ]
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {"id": number, "type": "function", "function": call}
            for number, call in zip(ids, calls, strict=False)
        ],
    }


def _answer(text: str, prompt: str, thought: tuple[str, str] | None) -> str:
    """What a text has after a prompt, without a thought that says nothing."""
    text, prompt = (one[one.rfind(_ASKED) :][:_MOST] for one in (text, prompt))
    shared = len(common(text, prompt))
    text, prompt = text[shared:], prompt[shared:]
    # The prompt may say more than the text before the answer begins.
    text = text[max(n for n in range(_SHARED) if prompt.endswith(text[:n])) :]
    if thought:
        opens, closes = (re.escape(mark.strip()) for mark in thought)
        text = re.sub(rf"^\s*({opens})?\s*{closes}", "", text)
    return text


def _form(text: str, said: tuple[str, str, str], count: int) -> tuple[CallForm, tuple[str, str]]:
    """The form of `count` calls, given what is before and after an answer without any, and the tag
    that ends it; and what is around such an answer."""
    opens, end, turn = said
    first, _, rest = re.sub("|".join(_IDS), ID, text).partition(_NAMES[0])
    here, _, last = rest.partition(_NAMES[1]) if count == 2 else (rest, "", "")
    here, last = here.replace(_NAMES[0], NAME), last.replace(_NAMES[1], NAME)
    middle, arguments, following, last = _arguments(here, last)
    close = _common_end(last, end)
    closes = end[: len(end) - len(close)] if opens else ""
    last = last[: len(last) - len(close)]
    last = last.partition(turn)[0] if turn else last
    for token in ENDS:
        last = last.removesuffix(token)
    first = first.replace(f"{opens}{closes}", "") if opens else first
    lead = _SPACE.match(first)[0]  # type: ignore[index]
    first = first.removeprefix(lead)
    if count == 2:
        first, following = _counted(first, following)
    form = CallForm(first, middle, last, following, arguments, (opens, closes), lead)
    return form, (opens, closes)


def _common_end(one: str, other: str) -> str:
    """What two texts end with, tag by tag."""
    parts = (reversed(re.findall(ATOMS, text)) for text in (one, other))
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*parts, strict=False))
    return "".join(reversed([a for a, _ in same]))


def _counted(first: str, following: str) -> tuple[str, str]:
    """What comes before the first and the second call, with what counts them."""
    one, other = (re.search(r"(\d+)(\D*)$", text) for text in (first, following))
    if one and other and one[2] == other[2] and int(other[1]) == int(one[1]) + 1:
        first = f"{first[: one.start()]}{COUNT}{one[2]}"
        following = f"{following[: other.start()]}{COUNT}{other[2]}"
    return first, following


def _arguments(here: str, then: str) -> tuple[str, Json | Braces | Pairs, str, str]:
    """What is between a name and its arguments, how these are written, what comes before the next
    name, and what comes after the last arguments. `then` is what follows a second name, if any."""
    for syntax in (_json, _braces):
        if found := syntax(here, _FIRST):
            before, arguments, after = found
            if not then:
                return before, arguments, "", after
            if not (last := syntax(then, _SECOND)):
                raise _UnknownError("two calls have their arguments in different ways")
            return _counting(before, last[0]), arguments, after, last[2]
    return _pairs(here, then)


def _counting(one: str, other: str) -> str:
    """What is the same for two calls, with what counts them."""
    if one != other and re.sub(r"\d+", COUNT, one) == re.sub(r"\d+", COUNT, other):
        numbers = zip(re.split(r"(\d+)", one), re.split(r"(\d+)", other), strict=True)
        return "".join(a if a == b else COUNT for a, b in numbers)
    return one


def _json(text: str, given: dict[str, Any]) -> tuple[str, Json, str] | None:
    for at in (found.start() for found in re.finditer(r"\{", text)):
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            continue
        if value == given:
            shown = text[at:end]
            return text[:at], Json("\n" in shown, shown.isascii()), text[end:]
    return None


def _braces(text: str, given: dict[str, Any]) -> tuple[str, Braces, str] | None:
    key = next(key for key, value in given.items() if isinstance(value, str))
    quote = re.search(rf"\b{key}:(\S+?){re.escape(given[key])}", text)
    if not quote:
        return None
    written = re.search(_in_braces(given, re.escape(quote[1])), text)
    if not written:
        return None
    return text[: written.start()], Braces(quote[1]), text[written.end() :]


def _in_braces(value: Any, quote: str) -> str:
    """A regular expression for a value in braces."""
    if isinstance(value, dict):
        pairs = (f"{key}:{_in_braces(value[key], quote)}" for key in sorted(value))
        return rf"\{{{','.join(pairs)}\}}"
    if isinstance(value, list):
        return rf"\[{','.join(_in_braces(one, quote) for one in value)}\]"
    if isinstance(value, str):
        return f"{quote}{re.escape(value)}{quote}"
    return f"({json.dumps(value)}|{value})"


def _pairs(here: str, then: str) -> tuple[str, Pairs, str, str]:
    """Arguments one by one; there must be a second call to see where one ends."""
    opening, leads, tails, python = _values(here, _FIRST)
    opening_2, more, tails_2, python_2 = (
        _values(then, _SECOND) if then else (opening, {}, {}, False)
    )
    tail, following = tails["integer"], tails["object"]
    following, last = (following, tails_2["number"]) if then else ("", following)
    before = _common_end(opening, tail)
    middle = opening.removesuffix(before)
    if opening_2 != opening and _counting(opening, opening_2) == opening:
        raise _UnknownError("what comes before its arguments differs from call to call")
    middle = _counting(middle, opening_2.removesuffix(before))
    after = common(tail.removesuffix(before), common(last, following) if then else last)
    between = tail.removesuffix(before).removeprefix(after)
    lead, text = leads["integer"], leads["string"]
    leads |= {"number": more.get("number", lead), "null": more.get("null", lead)}
    quotes = "", ""
    if text != lead and text.startswith(lead):
        quotes = text.removeprefix(lead), tails["string"].removesuffix(tail)
        leads["string"] = lead
    arguments = Pairs(
        leads, before, after, between, quotes, bool(quotes[0]) and more.get("string") == lead,
        python or python_2,
    )  # fmt: skip
    return middle, arguments, following.removeprefix(after), last.removeprefix(after)


def _values(text: str, given: dict[str, Any]) -> tuple[str, dict[str, str], dict[str, str], bool]:
    """What comes before the first argument; by type, what leads to its value and what comes after;
    and whether a value is not JSON but as Python writes it."""
    places = [(key, at) for key in given if (at := text.find(key)) >= 0]
    kinds = {"probe_plain": "string"} | {f"probe_{kind}": kind for kind in TYPES}
    leads, tails, python = {}, {}, False
    for (key, at), (_, end) in itertools.pairwise([*places, ("", len(text))]):
        value = given[key]
        part = text[at + len(key) : end]
        as_json, as_python = json.dumps(value), str(value)
        ways = [as_python] if isinstance(value, str) else [as_json, as_python]
        found = max((part.rfind(way), way) for way in ways)
        if found[0] < 0:
            raise _UnknownError(f"the value {as_json} is not in {part!r:.80}")
        python |= found[1] not in (as_json, value)
        leads[kinds[key]], tails[kinds[key]] = part[: found[0]], part[found[0] + len(found[1]) :]
    if not places or places[0][0] != next(iter(given)):
        raise _UnknownError("its arguments are not there")
    return text[: places[0][1]], leads, tails, python
