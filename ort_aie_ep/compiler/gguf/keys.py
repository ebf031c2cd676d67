"""The keys of a model's architecture in a GGUF file's metadata.

llama.cpp reads some keys for every architecture (`load_hparams` in llama-model.cpp) and others for
some (`load_arch_hparams` in models/). What it reads is used here or refused by name. What it does
not read has no meaning in that architecture, and is listed in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field

# Keys that llama.cpp reads and that do not change logits here: sizes that the tensors have too,
# what only a vector of embeddings depends on, and a remark on how the model was made.
_WITHOUT_EFFECT = frozenset(
    {"vocab_size", "embedding_length_out", "pooling_type", "rope.scaling.finetuned"}
)


class Keys:
    """Keys that begin with the architecture's name; `unused` lists those that nobody asked for.

    Attributes:
        architecture: its name in the file.
    """

    def __init__(self, metadata: Field, architecture: str) -> None:
        self.architecture = architecture
        self._metadata = metadata
        self._asked = set(_WITHOUT_EFFECT)

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def _path(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def _find(self, name: str) -> Field | None:
        self._asked.add(name)
        return self._metadata.find(self._path(name))

    def _field(self, name: str) -> Field:
        return self._find(name) or self._metadata.field(self._path(name))

    def integer(
        self, name: str, least: int = 1, default: int | None = None, most: int = 1 << 31
    ) -> int:
        """A whole number from `least` to `most`."""
        if default is not None and name not in self:
            return default
        return self._field(name).integer(least, most)

    def integers(self, name: str, count: int, default: int | None = None) -> list[int]:
        """As many whole numbers or booleans; one number stands for all."""
        if default is not None and name not in self:
            return [default] * count
        found = self._field(name)
        if not isinstance(found.value, list):
            return [found.integer(0, 1 << 31)] * count
        legal = all(isinstance(each, int) and 0 <= each < 1 << 31 for each in found.value)
        found.require(legal and len(found.value) >= count, f"{count} whole numbers")
        return [int(each) for each in found.value[:count]]

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        if default is not None and name not in self:
            return default
        return self._field(name).positive()

    def find(self, name: str) -> float | None:
        """A number above 0, or None; as 0, llama.cpp writes one that is not there."""
        found = self._find(name)
        return None if found is None or found.value == 0 else found.positive()

    def text(self, name: str, default: str) -> str:
        """A string."""
        found = self._find(name)
        return default if found is None else found.text()

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        found = self._find(name)
        return default if found is None else found.boolean()

    def period(self, name: str, default: int, layers: int) -> int:
        """In how many layers the last one is different: a number, where 0 stands for no such layer,
        or a list that says of each layer whether it is like the others."""
        found = self._find(name)
        if found is None:
            return default
        if not isinstance(found.value, list):
            return found.integer(0, 1 << 31) or layers + 1
        alike = [bool(each) for each in found.value]
        period = (alike.index(False) if False in alike else layers) + 1
        legal = alike == [(layer + 1) % period != 0 for layer in range(layers)]
        found.require(legal, "a number, or a list in which every n-th layer is different")
        return period

    def require(self, expected: Mapping[str, Any]) -> None:
        """Refuses keys with other values than these: what they change is not supported."""
        for name, value in expected.items():
            found = self._find(name)
            if found is not None and found.value != value:
                raise found.fail(f"{value}: no other value is supported in {self.architecture}")

    def fail(self, name: str, wanted: str) -> AieError:
        """The error for a value that is not what it must be."""
        path = self._path(name)
        return Field(self._metadata.value.get(path), self._metadata.file, path).fail(wanted)

    def unused(self) -> list[str]:
        """Keys of the architecture that nobody asked for, in full."""
        start = f"{self.architecture}."
        return sorted(
            key
            for key in self._metadata.value
            if key.startswith(start) and key.removeprefix(start) not in self._asked
        )
