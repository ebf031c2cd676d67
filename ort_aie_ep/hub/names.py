"""Names of models on a hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

# Owners and repositories begin with a letter or a digit, so that a path with dots, a tilde or a
# drive is not a name.
_PART = r"[A-Za-z0-9][\w.-]*"
# A page's address, which loses a slash as a path, and the names of ollama and llama.cpp.
_NAME = re.compile(
    r"(?:(?:https?://?)?(?:hf\.co|huggingface\.co)/)?"
    rf"(?P<owner>{_PART})/(?P<repo>{_PART})(?:@(?P<revision>[^:@\s]+))?(?::(?P<inside>[^:\s]+))?/?",
    re.ASCII,
)
DEFAULT_REVISION = "main"


@dataclass(frozen=True)
class Name:
    """A model on a hub.

    Attributes:
        owner: user or organisation.
        repo: the repository, without its owner.
        revision: a branch, tag or commit.
        inside: a folder or file of the repository, or a GGUF file's type such as Q8_0; empty for
            what the repository as a whole offers.
    """

    owner: str
    repo: str
    revision: str = DEFAULT_REVISION
    inside: str = ""

    @property
    def repository(self) -> str:
        """OWNER/REPO."""
        return f"{self.owner}/{self.repo}"

    def at(self, inside: str) -> Name:
        """The name of a part of the same repository."""
        return Name(self.owner, self.repo, self.revision, inside)

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repository}{revision}{self.inside and f':{self.inside}'}"


def find_name(given: str | os.PathLike[str]) -> Name | None:
    """The name in what a user gave as a model; None if it is a path that exists, or not a name."""
    path = Path(given)
    try:
        if path.exists() or path.is_symlink():
            return None
    except (OSError, ValueError):  # no file can be called that
        return None
    found = _NAME.fullmatch(os.fspath(given) if isinstance(given, str) else path.as_posix())
    if found is None or ".." in found["repo"]:
        return None
    parts = {name: part for name, part in found.groupdict().items() if part}
    return Name(**{**parts, "inside": parts.get("inside", "").strip("/")})
