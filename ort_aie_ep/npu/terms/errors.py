"""Errors of the NPU side: a device, a design or a stream that is not possible."""

from __future__ import annotations

from ort_aie_ep.errors import AieError


class DesignError(AieError):
    """A design, or a shape given to it, that the device or the vocabulary does not allow."""


class PackageError(DesignError):
    """A folder that is not a design package, or one that does not fit this library or device."""


class StreamError(AieError):
    """A malformed instruction stream, or one that does not fit the design's configuration."""


class SimulationError(AieError):
    """A simulation that cannot continue: a deadlock, or an access that hardware would refuse."""
