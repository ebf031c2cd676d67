"""What models write around their texts: thoughts, and calls of tools.

`probes` finds the form in what a chat template makes of calls, `forms` says what a form is and has
those that no template shows, and `formats` puts together what is known of a model. `grammars` (of
`rules`) holds an answer to it, `reader` (with `pieces`) takes an answer apart as its tokens come,
and `messages` writes earlier calls and their results as chat templates want them. Arguments that
are not JSON are in `pairs` and `values`.
"""

from __future__ import annotations

from ort_aie_ep.running.answers.formats import AnswerFormat, find_format
from ort_aie_ep.running.answers.forms import Tool, plain_names
from ort_aie_ep.running.answers.reader import AnswerReader, CallDelta, Delta

__all__ = [
    "AnswerFormat", "AnswerReader", "CallDelta", "Delta", "Tool", "find_format", "plain_names",
]  # fmt: skip
