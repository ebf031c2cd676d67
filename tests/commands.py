"""The command line, as tests call it."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from ort_aie_ep.cli import app


def ort_aie(*words: object, **more: Any) -> Any:
    """A command's result; `more` is for typer's runner."""
    return CliRunner().invoke(app, [str(word) for word in words], **more)


def succeeded(*words: object) -> Any:
    result = ort_aie(*words)
    assert result.exit_code == 0, result.output
    return result


def mistake(*words: object) -> str:
    """The command's message about a user's mistake: one message, no traceback."""
    result = ort_aie(*words)
    assert result.exit_code == 1
    assert result.stdout == ""
    # It follows the lines of steps that took long.
    message = result.stderr[result.stderr.index("error: ") :].strip()
    assert "Traceback" not in message
    return str(message)
