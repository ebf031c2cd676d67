"""The errors this package raises on purpose."""

from __future__ import annotations


class AieError(Exception):
    """Something is wrong with what the user passed; the text is written for the user."""
