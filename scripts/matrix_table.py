"""Write the results of check_model_matrix.py into docs/models.md, and the details beside it.

    models/bin/python scripts/matrix_table.py WORK docs/models.md

The script writes the text between the markers of the page. docs/model_matrix.json gets a line for
each case.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- the matrix: begin -->", "<!-- the matrix: end -->"
KINDS = {"builder": "onnxruntime-genai's model builder", "optimum": "optimum"}
# Smaller distances come from float32 sums in another order.
FLOAT_LIMIT = 1e-4
GOOD, NOTHING = "good", "nothing to compile"
# How Python and ONNX Runtime begin an error message.
_RUNTIME = re.compile(r"^\w+: (Error in execution: |\[ONNXRuntimeError\] : \d+ : \w+ : )?")
Result = dict[str, Any]


def load(work: Path, kind: str) -> list[Result]:
    """The results of one kind, sorted by name."""
    files = sorted((work / "results" / kind).glob("*.json"))
    return sorted((json.loads(file.read_text()) for file in files), key=lambda r: r["name"])


def option(result: Result) -> str:
    """The part of the case's name after its family; empty for the plain case."""
    return result["name"].removeprefix(result["family"]).lstrip(", ")


def ratio(results: Iterable[Result], numerics: str) -> str:
    """The smallest and the largest multiple of ONNX Runtime's own distance."""
    values = [
        r["ours"][numerics] / r["theirs"]
        for r in results
        if numerics in r["ours"] and r["theirs"] > FLOAT_LIMIT
    ]
    if not values:
        return "–"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def operators(counts: dict[str, int]) -> str:
    """ "2 A, B"."""
    parts = [k if v == 1 else f"{v} {k}" for k, v in sorted(counts.items())]
    return ", ".join(parts) or "–"


def table(head: str, rows: Iterable[list[str]]) -> Iterator[str]:
    """A Markdown table; `head` has the columns' titles, separated by |."""
    yield f"| {head} |"
    yield "|" + "---|" * (head.count("|") + 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def families(results: list[Result]) -> Iterator[list[str]]:
    """A row for each family: its plain case, and the numbers of all its cases."""
    for name in sorted({r["family"] for r in results}):
        mine = [r for r in results if r["family"] == name]
        plain = next((r for r in mine if not option(r)), mine[0])
        good = [r for r in mine if r["status"] == GOOD]
        yield [
            f"`{name}`",
            f"{len(good)} of {len(mine)}",
            operators(plain["taken"]),
            operators(plain["left"]),
            ratio(good, "bf16"),
            ratio(good, "int8"),
        ]


def options(results: list[Result]) -> Iterator[list[str]]:
    """A row for each option, over the families that were built with it."""
    for name in sorted({option(r) for r in results} - {""}):
        mine = [r for r in results if option(r) == name]
        good = [r for r in mine if r["status"] == GOOD]
        told = ", ".join(sorted(r["family"] for r in good)) or "–"
        count = f"{len(good)} of {len(mine)}"
        yield [name, count, told, *(ratio(good, n) for n in ("bf16", "int8", "provider"))]


def failures(results: list[Result]) -> Iterator[list[str]]:
    """A row for each other outcome: its cases, and the message of the first."""
    others = [r for r in results if r["status"] != GOOD]
    keys = sorted({(r["status"], said(r)) for r in others})
    for status, detail in keys:
        names = [r["name"] for r in others if (r["status"], said(r)) == (status, detail)]
        yield [status, ", ".join(f"`{name}`" for name in names), detail]


def said(result: Result) -> str:
    """The first reason given for a node, or the error."""
    reasons = [r for r in result["reasons"] if "compile --quantize" not in r]
    text = (reasons if reasons and result["status"] == NOTHING else [result["detail"]])[0]
    text = _RUNTIME.sub("", text)
    cut = text if len(text) <= 160 else text[:160].rsplit(" ", 1)[0] + " …"
    return cut.replace("|", "\\|")


def section(work: Path, kind: str) -> Iterator[str]:
    """The part of the page about one kind."""
    results, stated = load(work, kind), json.loads((work / "results" / f"{kind}.json").read_text())
    good = [r for r in results if r["status"] == GOOD]
    date = stated.pop("date")
    versions = ", ".join(f"{name} {version}" for name, version in stated.items())
    exact = [r for r in good if r["ours"] and r["theirs"] <= FLOAT_LIMIT]
    names = {r["family"] for r in results}
    yield f"### {KINDS[kind]}"
    yield ""
    text = (
        f"{date}, {versions}: {len(results)} folders of {len(names)} families, {len(good)} of them "
        f"compiled and right. `bf16`: {ratio(good, 'bf16')}; `int8`: {ratio(good, 'int8')}; "
        f"the execution provider: {ratio(good, 'provider')}."
    )
    plain = [r for r in exact if not r["name"].partition("--quantize")[1]]
    if plain:
        worst = max(max(r["ours"].values()) for r in plain)
        text += (
            f" {len(plain)} folders have no quantised weights; their logits differ by at most "
            f"{worst:.0e}, because sums are in another order."
        )
    yield from textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield from table(
        "family | right | aie operators | left on the CPU EP | bf16 | int8", families(results)
    )
    yield ""
    yield from table("option | right | families | bf16 | int8 | provider", options(results))
    yield ""
    yield from table("other outcomes | cases | why", failures(results))
    yield ""


def details(work: Path) -> str:
    """A line for each case."""
    lines = [
        json.dumps({"from": kind, **result}, ensure_ascii=False)
        for kind in KINDS
        for result in load(work, kind)
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> None:
    """Write the page and the details."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("page", type=Path)
    arguments = parser.parse_args()
    before, _, rest = arguments.page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        parser.error(f"{arguments.page} has no markers {BEGIN} and {END}")
    lines = [line for kind in KINDS for line in section(arguments.work, kind)]
    text = "\n".join([BEGIN, "", *lines])
    arguments.page.write_text(f"{before}{text}{END}{after}")
    arguments.page.with_name("model_matrix.json").write_text(details(arguments.work))


if __name__ == "__main__":
    main()
