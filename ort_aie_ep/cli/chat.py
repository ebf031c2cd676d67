"""`ort-aie chat`: a conversation in a terminal, or with the lines of a pipe."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep import platforms
from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app, refused
from ort_aie_ep.cli.model import HELP, METAVAR, opened
from ort_aie_ep.cli.options import (
    DraftModelOption,
    DraftOption,
    SamplingOptions,
    SystemOption,
    takes_options,
)
from ort_aie_ep.errors import AieError
from ort_aie_ep.requirements import require
from ort_aie_ep.runtime.options import Options

if TYPE_CHECKING:
    from prompt_toolkit.history import History

    from ort_aie_ep.running.answers import Delta
    from ort_aie_ep.running.conversation import Conversation

# What a line may be besides a message.
_COMMANDS = {
    "/system TEXT": "set the system message; leave empty to remove it",
    "/set NAME VALUE": "change temperature, top_p, top_k, min_p, repeat_penalty, seed, max_tokens",
    "/clear": "forget the messages, but not the system message",
    "/save FILE": "write the messages as JSON",
    "/load FILE": "continue with the messages of a file",
    "/stats": "the speed of the last answer, and how full the context is",
    "/help": "these lines",
    "/bye": "leave",
    '"""': "begins and ends a message of several lines",
}
# Other words for the same.
_ALSO = {"reset": "clear", "exit": "bye", "quit": "bye", "?": "help"}
_LIMITS = ("max_tokens", "num_predict")
_QUOTES = '"""'
_MORE_ROOM = "use /clear, or start with a larger --context"


class _Left(Exception):
    """The user ends the conversation."""


@app.command("chat")
@takes_options
def chat_command(
    folder: Annotated[Path, typer.Argument(metavar=METAVAR, help=HELP)],
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUESTION]", help="Answer this alone, and end.", show_default=False
        ),
    ] = None,
    system: SystemOption = "",
    context: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens of the context. Default: the model's, if memory has room.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="New tokens of an answer, at most.")
    ] = None,
    no_template: Annotated[
        bool,
        typer.Option("--no-template", help="Continue the text as it is, as base models do."),
    ] = False,
    *,
    sampling: SamplingOptions,
    draft: DraftOption = 0,
    draft_model: DraftModelOption = None,
    options: Options,
) -> None:
    """Converse with a model, or ask it one question.

    In a terminal, Ctrl-C ends an answer, Ctrl-D or /bye ends the conversation, and /help lists the
    commands. Without a terminal, each line of stdin is a message or a command, and the answers go
    to stdout:

    ```
    ort-aie chat OWNER/REPO
    ort-aie chat MODEL.gguf "What is an NPU?"
    ort-aie chat COMPILED --system "Answer in French." --temperature 0.7
    ort-aie chat COMPILED < questions.txt > answers.txt
    ```
    """
    converse(
        Talk(folder, system, context, max_tokens, sampling, draft, draft_model, not no_template),
        options,
        question,
    )


@dataclass
class Talk:
    """What a conversation is asked to be, as the options of `chat` and `run` say."""

    folder: Path
    system: str
    context: int | None
    max_tokens: int | None
    sampling: SamplingOptions
    draft: int
    draft_model: Path | None
    template: bool = True


def converse(talk: Talk, options: Options, question: str | None = None) -> None:
    """A conversation in a terminal or with the lines of stdin, or the answer to one question."""
    require("ort-aie chat", ("jinja2", "prompt_toolkit"))
    from ort_aie_ep.running.conversation import Conversation
    from ort_aie_ep.running.loop import open_loop
    from ort_aie_ep.running.templates import find_template

    with opened(talk.folder, talk.draft, talk.draft_model, options.target) as (model, guessing):
        if talk.template and find_template(model.folder) is None:
            raise AieError(
                f"{talk.folder} has no chat template: add --no-template, or use ort-aie run with a "
                "prompt, and it continues your text"
            )
        with console.bar("open the model"):
            loop = open_loop(
                model.folder, options, 1, talk.context, draft=talk.draft, drafter=guessing
            )
        conversation = Conversation(
            loop, talk.sampling.given(), talk.max_tokens, template=talk.template
        )
        conversation.system(talk.system)
        show = _show_answer if sys.stdout.isatty() else _print_answer
        if question is not None:
            # Not KeyboardInterrupt, after which nobody knows what the cache holds.
            signal.signal(signal.SIGINT, lambda *_: conversation.stop())
            show(conversation, question)
        elif sys.stdin.isatty() and sys.stdout.isatty():
            _in_terminal(conversation, talk)
        else:
            _in_pipe(conversation, talk)


def _in_pipe(conversation: Conversation, talk: Talk) -> None:
    lines = (line.rstrip("\r\n") for line in sys.stdin)
    for line in lines:
        text = _gathered(line, lambda: next(lines, _QUOTES))
        try:
            if text.strip() and not _obeyed(conversation, talk, text.strip()):
                _print_answer(conversation, text)
        except _Left:
            return


def _in_terminal(conversation: Conversation, talk: Talk) -> None:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input.typeahead import clear_typeahead

    from ort_aie_ep.cli.answer import Typed, unechoed

    lines: PromptSession[str] = PromptSession("> ", history=_history())
    typed = Typed()

    def stop(*_: object) -> None:
        conversation.stop()
        typed.forget()
        clear_typeahead(lines.input)  # the rest of a paste

    console.note("/help lists commands, Ctrl-C ends an answer, Ctrl-D leaves")
    # A prompt has a handler of its own.
    signal.signal(signal.SIGINT, stop)
    while True:
        try:
            first = lines.prompt("> ", default=typed.take())
            text = _gathered(first, lambda: lines.prompt("... "))
        except KeyboardInterrupt:  # what was typed is given up
            continue
        except EOFError:
            return
        try:
            if text.strip() and not _obeyed(conversation, talk, text.strip()):
                with unechoed(typed):
                    _show_answer(conversation, text)
        except _Left:
            return
        except (AieError, OSError) as error:
            console.fail(refused(error) if isinstance(error, OSError) else str(error))


def _gathered(first: str, more: Callable[[], str]) -> str:
    """A message: its first line, or what is between three quotes and the next three."""
    if not first.lstrip().startswith(_QUOTES):
        return first
    text = first.lstrip().removeprefix(_QUOTES)
    while _QUOTES not in text:
        text += "\n" + more()
    return text.partition(_QUOTES)[0].strip("\n")


def _history() -> History:
    """Earlier lines, of which a user without a home has none."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        file = platforms.state_home() / "ort_aie_ep" / "chat_history"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)  # others need not read it
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return FileHistory(file)


def _answer(conversation: Conversation, text: str) -> Iterator[Delta]:
    """The pieces of the answer, with a bar until the first one."""
    from ort_aie_ep.running.turns import PromptTooLongError

    with ExitStack() as bars:
        bar = bars.enter_context(console.bar("read the prompt", "tokens"))
        try:
            for delta in conversation.say(text, bar):
                bars.close()
                yield delta
        except PromptTooLongError as error:
            raise AieError(f"{error}: {_MORE_ROOM}") from error


def _print_answer(conversation: Conversation, text: str) -> None:
    for delta in _answer(conversation, text):
        console.write_text(delta.content)
    console.write_text("\n")
    console.note(_stats(conversation))
    _tell_how_it_ended(conversation)


def _show_answer(conversation: Conversation, text: str) -> None:
    from ort_aie_ep.cli.answer import Answer

    pieces = _answer(conversation, text)
    if (first := next(pieces, None)) is not None:  # until then there is a bar
        with Answer(console.out) as answer:
            for delta in chain((first,), pieces):
                for piece, thought in ((delta.reasoning, True), (delta.content, False)):
                    if piece:
                        answer.add(piece, thought=thought)
    if conversation.said:
        console.note(_speed(conversation))
    _tell_how_it_ended(conversation)


def _tell_how_it_ended(conversation: Conversation) -> None:
    if not conversation.said:
        console.note("stopped while the prompt was read, so nothing was said")
    elif conversation.full:
        console.note(f"the context of {conversation.context} tokens is full: {_MORE_ROOM}")
    elif conversation.cut:
        console.note("cut at --max-tokens: /set max_tokens N, or say: go on")


def _obeyed(conversation: Conversation, talk: Talk, line: str) -> bool:
    """Whether a line is a command, which is then done. A path is none."""
    found = re.fullmatch(r"/(\w*|\?)(?:\s+(.*))?", line, re.DOTALL)
    if found is None:
        return False
    name, rest = _ALSO.get(found[1], found[1]), found[2] or ""
    if name == "set" and (of := re.fullmatch(r"system\s+(.*)", rest, re.DOTALL)):
        name, rest = "system", of[1]  # as ollama has it
    if name == "system":
        conversation.system(rest.strip('"'))
    elif name == "set":
        _set(conversation, talk, rest.removeprefix("parameter ").split())
    elif name == "clear" and not rest:
        conversation.reset()
    elif name == "save" and rest:
        conversation.save(_file(rest))
    elif name == "load" and rest:
        conversation.load(_file(rest))
    elif name == "stats" and not rest:
        console.note(_stats(conversation))
    elif name == "help" and not rest:
        console.note("\n".join(f"{form:<16}{what}" for form, what in _COMMANDS.items()))
    elif name == "bye" and not rest:
        raise _Left
    else:
        raise AieError(f"{line.splitlines()[0]!r} is not one of {', '.join(_COMMANDS)}")
    return True


def _set(conversation: Conversation, talk: Talk, words: list[str]) -> None:
    """Changes how the next answers are written; without words, says how they are."""
    if words:
        if len(words) != 2:
            raise AieError("/set takes a name and a value, such as /set temperature 0.7")
        name, value = words
        if name in _LIMITS:
            if not value.isdecimal() or not int(value):
                raise AieError(f"{name} must be a whole number of at least 1, got {value!r}")
            talk.max_tokens = int(value)
        else:
            talk.sampling = talk.sampling.changed(name, value)
        conversation.choose(talk.sampling.given(), talk.max_tokens)
    chosen = conversation.sampling
    names = ("temperature", "top_p", "top_k", "min_p", "seed")
    shown = [f"{name} {getattr(chosen, name)}" for name in names]
    shown.append(f"repeat_penalty {chosen.repetition_penalty}")
    shown.append(f"max_tokens {talk.max_tokens or 'as many as there is room for'}")
    console.note(", ".join(shown))


def _file(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise AieError(f"{text}: there is no such user") from error


def _speed(conversation: Conversation) -> str:
    last = conversation.last
    assert last is not None
    speed = "" if last.decode_speed is None else f", {last.decode_speed:.1f} tok/s"
    return f"{last.new_tokens} tokens{speed}"


def _stats(conversation: Conversation) -> str:
    last = conversation.last
    if last is None:
        return "there was no answer yet"
    drafted = (
        "" if last.drafted is None else f", {last.drafted[0]} of {last.drafted[1]} guesses right"
    )
    return (
        f"prompt: {last.prompt_tokens} tokens, {last.cached_tokens} from the cache, first token "
        f"after {last.prefill_seconds:.2f} s · answer: {_speed(conversation)}{drafted} · context: "
        f"{last.prompt_tokens + last.new_tokens} of {conversation.context}"
    )
