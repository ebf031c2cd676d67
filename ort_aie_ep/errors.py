"""The errors this package raises on purpose."""

from __future__ import annotations


class AieError(Exception):
    """Anything wrong with what the user gave us; its text is meant to be read by them."""
