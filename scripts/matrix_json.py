"""Write docs/model_matrix.json from the results of check_model_matrix.py, and print a summary.

    models/bin/python scripts/matrix_json.py WORK docs/model_matrix.json

The file gets a line for each case. docs/models.md quotes the summary.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

KINDS = ("builder", "optimum")
# Smaller distances come from float32 sums in another order.
FLOAT_LIMIT = 1e-4
GOOD = "good"
Result = dict[str, Any]


def load(work: Path, kind: str) -> list[Result]:
    """The results of one kind, sorted by name."""
    files = sorted((work / "results" / kind).glob("*.json"))
    return sorted((json.loads(file.read_text()) for file in files), key=lambda r: r["name"])


def ratio(results: Iterable[Result], numerics: str) -> str:
    """The smallest and the largest multiple of ONNX Runtime's own distance."""
    values = [
        r["ours"][numerics] / r["theirs"]
        for r in results
        if numerics in r["ours"] and r["theirs"] > FLOAT_LIMIT
    ]
    return f"{min(values):.2f} to {max(values):.2f}" if values else "–"


def summary(work: Path, kind: str) -> Iterator[str]:
    """What docs/models.md says about one kind, and the cases that are not good."""
    results, stated = load(work, kind), json.loads((work / "results" / f"{kind}.json").read_text())
    good = [r for r in results if r["status"] == GOOD]
    date = stated.pop("date")
    versions = ", ".join(f"{name} {version}" for name, version in stated.items())
    families = {r["family"] for r in results}
    yield f"{kind}, {date}, {versions}"
    yield f"{len(results)} folders of {len(families)} families, {len(good)} good"
    for numerics in ("bf16", "int8", "provider"):
        yield f"{numerics}: {ratio(good, numerics)}"
    for status, count in Counter(r["status"] for r in results).most_common():
        if status != GOOD:
            names = "; ".join(r["name"] for r in results if r["status"] == status)
            yield f"{status}: {count} ({names})"


def lines(work: Path) -> str:
    """A line for each case."""
    cases = [
        json.dumps({"from": kind, **result}, ensure_ascii=False)
        for kind in KINDS
        for result in load(work, kind)
    ]
    return "[\n" + ",\n".join(cases) + "\n]\n"


def main() -> None:
    """Write the file and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("matrix", type=Path)
    arguments = parser.parse_args()
    text = [line for kind in KINDS for line in summary(arguments.work, kind)]
    arguments.matrix.write_text(lines(arguments.work))
    print("\n".join(text))


if __name__ == "__main__":
    main()
