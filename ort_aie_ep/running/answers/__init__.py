"""What models write around their texts: thoughts, and calls of tools.

`forms` is a table of the families, `formats` finds a model's row in it, `grammars` (of `rules`)
holds an answer to it, `reader` (with `pieces`) takes an answer apart as its tokens come, and
`messages` writes earlier calls and their results as chat templates want them. Arguments that are
not JSON are in `tags` and `braces`.
"""

from __future__ import annotations

from ort_aie_ep.running.answers.formats import AnswerFormat, find_format
from ort_aie_ep.running.answers.forms import Tool, plain_names
from ort_aie_ep.running.answers.reader import AnswerReader, CallDelta, Delta

__all__ = [
    "AnswerFormat", "AnswerReader", "CallDelta", "Delta", "Tool", "find_format", "plain_names",
]  # fmt: skip
