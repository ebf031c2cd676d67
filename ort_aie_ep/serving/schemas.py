"""How large a JSON schema may be, before a grammar is made of it.

A grammar grows with each count of a schema, so that 300 bytes could fill a machine's memory.
"""

from __future__ import annotations

import json
import re
from typing import Any

# Bytes of the text of a schema, its levels, and the sum of all its counts.
MAX_TEXT, MAX_DEPTH, MAX_COUNT = 2**16, 64, 4096
_COUNTS = {
    "maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties",
}  # fmt: skip
# Where a key is a name or a value that the schema's writer chose, and no keyword.
_NAMES = {"$defs", "definitions", "dependentSchemas", "properties"}
_VALUES = {"const", "default", "enum", "examples"}


def why_too_large(schema: Any) -> str:
    """Why a schema is not taken; empty if it is."""
    total, todo = 0.0, [(schema, 1, True)]
    while todo:
        node, depth, keywords = todo.pop()
        if depth > MAX_DEPTH:
            return f"the schema has more than {MAX_DEPTH} levels, the most that this server takes"
        if isinstance(node, list):
            todo += [(item, depth + 1, True) for item in node]
            continue
        if not isinstance(node, dict):
            continue
        for key, value in node.items():
            if keywords and key in _VALUES:
                continue
            if keywords and key in _COUNTS and isinstance(value, int | float):
                total += max(0, value)
            patterns = [value] if keywords and key == "pattern" else []
            patterns += value if keywords and key == "patternProperties" else []
            total += sum(_repeats(p) for p in patterns if isinstance(p, str))
            if total > MAX_COUNT:
                return (
                    f"{key}: the counts of the schema come to more than {MAX_COUNT}, the most that "
                    "this server takes in minItems, maxItems, minLength, maxLength, minProperties, "
                    "maxProperties and the repeats of patterns together"
                )
            named = keywords and key in (*_NAMES, "patternProperties")
            todo.append((value, depth + 1, not named))
    if (size := len(json.dumps(schema))) > MAX_TEXT:
        return f"the schema has {size} bytes: this server takes {MAX_TEXT}"
    return ""


def _repeats(pattern: str) -> int:
    """How many copies a pattern's {n,m} make, at most: they multiply where they are nested."""
    product = 1
    for low, high in re.findall(r"\{(\d{1,30})(?:,(\d{0,30}))?\}", pattern):
        product *= max(1, int(low), int(high or 0))
    return product
