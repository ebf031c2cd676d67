"""What the stand-in for the AIE API declares for kernels, read from its headers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from standin import HOST

# A scope outside the API: helpers, and what only the compiler of a header sees.
_PRIVATE = re.compile(r"\bnamespace (aie::)?detail\b")
_TYPE = re.compile(r"\b(?:class|struct|enum class|enum)\s+(?:alignas\(.*?\)\s+)?(\w+)")
_HEADS = re.compile(r"^(?:template\s*<|requires\b)")


@dataclass(frozen=True)
class Declaration:
    """`scope` is the class, or empty; `parameters` is None for anything but a function."""

    scope: str
    name: str
    parameters: tuple[str, ...] | None
    text: str


def declarations() -> list[Declaration]:
    """Every name that a kernel can reach without `detail`: functions, members, types, values."""
    found: list[Declaration] = []
    for header in sorted((HOST / "aie_api").rglob("*.hpp")):
        text = re.sub(r"//[^\n]*|\\\n|^\s*#[^\n]*", "", header.read_text(), flags=re.MULTILINE)
        found += _of_scope(text, "")
    return found


def _of_scope(text: str, scope: str) -> Iterator[Declaration]:
    """The names of a namespace (no `scope`) or of a class, without its private part."""
    public = True
    for head, body in _statements(text):
        labels = re.findall(r"\b(public|private|protected)\s*:", head)
        head = re.sub(r"\b(public|private|protected)\s*:", "", head).strip()
        if labels:
            public = labels[-1] == "public"
        if not public or not head or _PRIVATE.search(head):
            continue
        if re.match(r"(inline )?namespace\b|extern\b", head):
            yield from _of_scope(body or "", scope)
            continue
        if re.match(r"(static_assert|friend|using namespace)\b", head):
            continue
        plain = _without_heads(head)
        kind = _TYPE.match(plain)
        if kind and body is not None:
            # Specialisations add no names.
            if re.match(r"(class|struct)\b", plain):
                yield Declaration(scope, kind[1], None, plain)
                start = "" if plain.startswith("struct") else "private:"
                yield from _of_scope(start + body, kind[1])
            else:
                yield Declaration(scope, kind[1], None, plain)
                for value in re.findall(r"\b(\w+)\s*=[^,]*", body):
                    yield Declaration(kind[1], value, None, value)
            continue
        if kind:
            continue  # a declaration of something defined elsewhere
        yield _declaration(scope, plain)


def _declaration(scope: str, text: str) -> Declaration:
    if alias := re.match(r"using (\w+)\s*=", text):
        return Declaration(scope, alias[1], None, text)
    if conversion := re.match(r"(?:explicit |constexpr )*operator (.*?)\(\)", text):
        return Declaration(scope, f"operator {conversion[1]}", (), text)
    call = re.match(r"(.*?)(operator\s*(?:\(\)|\[\]|[^\s\w(]+)|~?\b\w+)\s*\(", _flat(text))
    value = re.match(r"[^(]*?\b(\w+)\s*(=|\{|$)", _flat(text))
    if value and "operator" not in text and (call is None or len(value[0]) <= len(call[0])):
        return Declaration(scope, value[1], None, text)
    assert call is not None, text
    inside = _inside(text, len(call[0]) - 1)
    return Declaration(scope, call[2].replace(" ", ""), tuple(_split(inside)), text)


def _flat(text: str) -> str:
    """The text, with everything between < and > replaced by as many letters."""
    flat, depth = [], 0
    for at, letter in enumerate(text):
        operator = "operator" in text[max(0, at - 10) : at] and not text[at - 1].isalnum()
        if letter == "<" and not operator and text[:at].rstrip()[-8:] != "operator":
            depth += 1
        flat.append("x" if depth else letter)
        if letter == ">" and depth:
            depth -= 1
    return "".join(flat)


def _inside(text: str, opening: int) -> str:
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[opening + 1 : at]
    raise AssertionError(f"no closing bracket: {text}")


def _split(parameters: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, letter in enumerate(parameters + ","):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if one := " ".join(parameters[start:at].split()):
                yield one
            start = at + 1


def _without_heads(head: str) -> str:
    """The statement without a leading `template <..>` and `requires(..)`."""
    while match := _HEADS.match(head):
        if match[0].startswith("template"):
            head = head[len(_balanced(head, "<", ">")) :].strip()
        else:
            head = head[len(_balanced(head, "(", ")")) :].strip()
    return head


def _balanced(text: str, opening: str, closing: str) -> str:
    depth = 0
    for at, letter in enumerate(text):
        depth += {opening: 1, closing: -1}.get(letter, 0)
        if letter == closing and depth == 0:
            return text[: at + 1]
    raise AssertionError(f"no {closing}: {text}")


def _statements(text: str) -> Iterator[tuple[str, str | None]]:
    """The statements at the top level of a text: the part before `;` or a block, and the block."""
    start = at = 0
    while at < len(text):
        if text[at] == ";":
            yield " ".join(text[start:at].split()), None
            start = at + 1
        elif text[at] == "{":
            depth, end = 0, at
            while True:
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
                if depth == 0:
                    break
            yield " ".join(text[start:at].split()), text[at + 1 : end - 1]
            at = end - 1
            start = end
        at += 1
