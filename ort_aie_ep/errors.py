"""The errors this package raises on purpose."""

from __future__ import annotations


class AieError(Exception):
    """Something is wrong with what the user passed; the text is written for the user."""


class FieldError(AieError):
    """A field of a request is wrong.

    Attributes:
        field: its name, such as logit_bias.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self._message = field, message

    def __reduce__(self) -> tuple[type[FieldError], tuple[str, str]]:
        """Errors go from process to process."""
        return type(self), (self.field, self._message)


class UnexpectedError(AieError):
    """This program has a fault, which ended what it was doing and nothing else."""


def as_error(error: Exception) -> AieError:
    """`error`, or what says that it was not expected."""
    if isinstance(error, AieError):
        return error
    return UnexpectedError(f"this is a fault of ort_aie_ep: {type(error).__name__}: {error}")
