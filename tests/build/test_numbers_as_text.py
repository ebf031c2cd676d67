"""Numbers become text, and text numbers, in the same way in every locale: src/ uses from_chars and
to_chars, or streams with the classic locale. tests/check_locale.sh runs it with a decimal comma."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
FILES = sorted(path for path in SRC.rglob("*") if path.suffix in (".cc", ".h", ".inc"))
pytestmark = pytest.mark.skipif(not FILES, reason="no C++ sources beside the tests")

# What follows the process's locale.
FUNCTION = re.compile(r"\b(?:strto(?:f|d|ld)|sto(?:f|d|ld)|atof|localeconv)\b")
FORMAT = re.compile(r"%[-+0-9.*]*[lL]?[aefgAEFG]")
STREAM = re.compile(r"\bstd::(?:[io]?stringstream|ofstream) \w+\b")
CLASSIC = re.compile(r"\.imbue\(std::locale::classic\(\)\)")


def without_comments(path: Path) -> str:
    return re.sub(r"//.*", "", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("rule", [FUNCTION, FORMAT], ids=["function", "format"])
def test_no_number_is_read_or_written_by_the_locale(rule: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(SRC)}: {match[0]}"
        for path in FILES
        for match in rule.finditer(without_comments(path))
    ]
    assert found == []


def test_streams_of_numbers_have_the_classic_locale() -> None:
    found = [
        str(path.relative_to(SRC))
        for path in FILES
        for text in [without_comments(path)]
        if len(STREAM.findall(text)) != len(CLASSIC.findall(text))
    ]
    assert found == []
