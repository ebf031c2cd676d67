"""The stand-in for the AIE API offers what the real headers have, by the list made from them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import aie_api_list
import pytest
from aie_api_uses import Use, all_uses
from standin import ARCHITECTURES, HOST, diagnose
from standin_declarations import Declaration, declarations

KERNELS = HOST.parent
WORDS = sorted({words for uses in aie_api_list.read().values() for words, _ in uses})
# An iterator, or the element it points to: it converts only to what the headers return.
OWN = aie_api_list.OWN
RENEW = "if the headers have it: a use in aie_api_uses.py, then make real-headers WRITE=1"


@cache
def read() -> dict[str, dict[tuple[str, int], str]]:
    return aie_api_list.read()


def on_list(arch: str) -> dict[Use, str]:
    known = read()[arch]
    return {use: known[key] for use in all_uses() if (key := (use.words, use.lanes)) in known}


@pytest.mark.parametrize(
    ("arch", "every"),
    [("aie2p", False), *(pytest.param(a, True, marks=pytest.mark.in_turn) for a in ARCHITECTURES)],
)
def test_uses_that_are_not_on_the_list_do_not_compile(arch: str, every: bool) -> None:
    """Those with every number of lanes, or an eighth of those with one that is not on it."""
    listed = on_list(arch)
    others = [use for use in all_uses() if use not in listed]
    if not every:
        others = list({use.words: use for use in others}.values())[::8]
    refused = aie_api_list.refused(others, lambda code: diagnose(code, arch))
    assert [use.code for use in others if use not in refused] == [], RENEW


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_uses_on_the_list_compile_and_return_what_it_says(arch: str) -> None:
    listed = on_list(arch)
    assert len(listed) == len(read()[arch]), "the list has uses that nothing makes"
    found = aie_api_list.results(listed, lambda code: diagnose(code, arch))
    other = {u.code: (found[u], listed[u]) for u in listed if found[u] not in (listed[u], OWN)}
    assert other == {}


def arguments_of(name: str, words: str) -> list[int]:
    """The number of arguments of a call to `name` in a line of the list."""
    counts = []
    for call in re.finditer(rf"(?<!\w){re.escape(name)}(?:<[^()]*?>)?\(", words):
        depth, text = 0, ""
        for letter in words[call.end() :]:
            if letter == ")" and depth == 0:
                break
            depth += {**dict.fromkeys("(<[", 1), **dict.fromkeys(")>]", -1)}.get(letter, 0)
            text += "|" if letter == "," and depth == 0 else letter
        counts.append(text.count("|") + 1 if text else 0)
    return counts


def is_listed(declaration: Declaration) -> bool:
    name, parameters = declaration.name, declaration.parameters
    if name.startswith("operator"):
        symbol = name.removeprefix("operator").strip()
        if symbol in ("[]", "="):
            return any({"[]": "[unsigned]", "=": " = "}[symbol] in words for words in WORDS)
        return any(symbol in words or symbol[0].isalpha() for words in WORDS)
    if parameters is None:
        return any(re.search(rf"\b{name}\b", words) for words in WORDS)
    counts = {count for words in WORDS if name in words for count in arguments_of(name, words)}
    least = sum("=" not in one and "..." not in one for one in parameters)
    if any("..." in one for one in parameters):
        return max(counts, default=0) > least
    return {least, len(parameters)} <= counts


def test_every_name_that_a_kernel_can_reach_is_on_the_list() -> None:
    reached = [one for one in declarations() if one.parameters != ("detail::unfilled",)]
    assert len(reached) > 150
    missing = [f"{one.scope}::{one.name}{one.parameters}" for one in reached if not is_listed(one)]
    assert missing == [], RENEW


def test_a_name_or_an_overload_that_is_new_is_not_on_the_list() -> None:
    def one(name: str, *parameters: str) -> Declaration:
        return Declaration("", name, parameters, "")

    assert is_listed(one("bit_or", "const A& a", "const vector<T, N>& b"))
    assert not is_listed(one("bit_or", "const A& a", "const B& b", "const C& c"))
    assert not is_listed(one("rotate", "const vector<T, N>& v"))
    assert not is_listed(one("filter_even", "const V& v", "const V& w", "detail::chunk c"))


def test_kernels_name_no_helper_of_the_stand_in() -> None:
    for source in sorted(
        p for p in KERNELS.glob("*/*.*") if p.suffix in (".cc", ".h") and p.parent != HOST
    ):
        text = re.sub(r"#ifdef AIE_API_HOST_STAND_IN.*?#(else|endif)", "", _read(source))
        assert "detail::" not in text, source.name


def _read(source: Path) -> str:
    return " ".join(source.read_text().split())
