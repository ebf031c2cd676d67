"""The chat template of a model folder, found and rendered as transformers does it.

onnxruntime-genai has a renderer of its own, which knows less of Jinja and no lists of templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import MORE_TEMPLATES, ModelFolder
from ort_aie_ep.requirements import require
from ort_aie_ep.running.bounded import bounded

if TYPE_CHECKING:
    from jinja2 import Environment

_TOKENS = (
    "bos_token", "cls_token", "eos_token", "mask_token", "pad_token", "sep_token", "unk_token",
)  # fmt: skip


# Messages, tools, options, and whether an answer begins; and what makes a text of them.
Case = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], Mapping[str, Any], bool]
Render = Callable[..., str]


@dataclass(frozen=True)
class ChatTemplate:
    """A template in Jinja.

    Attributes:
        text: the template.
        tokens: the special tokens that it may name, such as bos_token.
        tool_use: the one in its place where tools are given; empty if it is the same.
    """

    text: str
    tokens: dict[str, str]
    tool_use: str = ""

    @property
    def for_tools(self) -> str:
        """The template where tools are given."""
        return self.tool_use or self.text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
        answer: bool = True,
    ) -> str:
        """The text for messages and tools (of JSON's types), with the beginning of an `answer`.

        `options` are what else the template may name, such as enable_thinking.

        Raises:
            TooMuchError: it takes too much time or memory.
            AieError: the template refuses the messages, or jinja2 is not installed.
        """
        try:
            return self._bounded(lambda render: render(messages, tools, options or {}, answer))
        except RuntimeError as error:
            raise AieError(f"the chat template refuses the messages: {error}") from error

    def render_each(self, cases: Sequence[Case]) -> list[str]:
        """The text of each case, the arguments of `render`; empty where the template refuses it.

        Raises:
            TooMuchError: they take too much time or memory.
            AieError: jinja2 is not installed.
        """

        def work(render: Render) -> str:
            texts = []
            for case in cases:
                try:
                    texts.append(render(*case))
                except RuntimeError:
                    texts.append("")
            return json.dumps(texts)

        try:
            texts: list[str] = json.loads(self._bounded(work))
        except RuntimeError:  # of its syntax
            return [""] * len(cases)
        return texts

    def _bounded(self, work: Callable[[Render], str]) -> str:
        """What `work` makes of a function that renders and raises RuntimeError."""
        require("a chat template", ("jinja2",))
        compiled = cache(_environment().from_string)  # made here for what it imports, not in a fork

        def render(
            messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]],
            options: Mapping[str, Any], answer: bool,
        ) -> str:  # fmt: skip
            try:
                template = compiled(self.for_tools if tools else self.text)
                text: str = template.render(
                    {**self.tokens, **options},
                    messages=list(messages),
                    tools=tools or None,
                    documents=None,
                    add_generation_prompt=answer,
                )
                return text
            except Exception as error:  # a template may raise anything
                raise RuntimeError(str(error) or type(error).__name__) from error

        return bounded(lambda: work(render), "the chat template")


def find_template(folder: ModelFolder) -> ChatTemplate | None:
    """The folder's chat template, None if there is none.

    Of several, it is the one named default, and with tools the one named tool_use. Files in Jinja
    go before templates in JSON, as in transformers.

    Raises:
        AieError: a file that may have it cannot be read, or none of several is the default.
    """
    config = _read(folder.path / "tokenizer_config.json")
    tokens = {}
    for content in (_read(folder.path / "special_tokens_map.json"), config):
        for name in _TOKENS:
            token = content.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                tokens[name] = token
    tool_use = folder.path / MORE_TEMPLATES / "tool_use.jinja"
    files = {"default": folder.path / "chat_template.jinja", "tool_use": tool_use}
    texts: dict[str, object] = {name: _text(file) for name, file in files.items() if file.is_file()}
    where = tool_use.parent
    if "default" not in texts:
        older = folder.path / "chat_template.json"
        for file, content in (
            (older, _read(older)),
            (folder.path / "tokenizer_config.json", config),
        ):
            if (template := content.get("chat_template")) is not None:
                where, texts = file, _named(template) | texts
                break
    if not texts:
        return None
    if "default" not in texts:
        names = ", ".join(map(str, texts))
        raise AieError(f'{where}: none of the chat templates is named "default": {names}')
    text, for_tools = texts["default"], texts.get("tool_use", "")
    if not isinstance(text, str) or not isinstance(for_tools, str):
        wrong = for_tools if isinstance(text, str) else text
        raise AieError(f"{where}: the chat template must be a text, got {wrong!r:.80}")
    return ChatTemplate(text, tokens, for_tools)


def _named(template: object) -> dict[str, object]:
    """Templates in JSON by name: a text alone is the default."""
    if isinstance(template, list):  # [{"name": ..., "template": ...}]
        return {str(item.get("name")): item.get("template") for item in template
                if isinstance(item, dict)}  # fmt: skip
    return template if isinstance(template, dict) else {"default": template}


def _read(file: Path) -> dict[str, Any]:
    """A file with an object in JSON; empty if it is missing."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(_text(file))
    except (RecursionError, ValueError) as error:
        raise AieError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise AieError(f"{file} must have an object, got {content!r:.80}")
    return content


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise AieError(f"{file} is not UTF-8: {error.reason}") from error


def _environment() -> Environment:
    """What templates of Hugging Face's models are written for."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import SandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks the parts of a text that a model wrote, for training."""

        tags: ClassVar[set[str]] = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            inside: list[nodes.Node] = parser.parse_statements(
                ("name:endgeneration",), drop_needle=True
            )
            return inside

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, ensure_ascii: bool = False, **how: Any) -> str:
        # jinja2's own escapes what HTML would read.
        return json.dumps(value, ensure_ascii=ensure_ascii, default=list, **how)  # of generators

    # Kimi's templates add to lists of their own, which the immutable one refuses.
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.filters["safe"] = str  # jinja2's own makes what is joined with it HTML
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
