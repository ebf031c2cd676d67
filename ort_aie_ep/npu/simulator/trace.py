"""Timelines of a simulation, for people: Perfetto's JSON (https://ui.perfetto.dev opens it)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from ort_aie_ep.models.files import written_beside


@dataclass
class Trace:
    """Spans of time by track. Off by default: a long run has millions of them."""

    enabled: bool = False
    spans: list[tuple[str, str, float, float]] = field(default_factory=list)

    def span(self, track: str, name: str, start: float, end: float) -> None:
        """Record that `track` was busy with `name` from `start` to `end` (seconds)."""
        if self.enabled and end > start:
            self.spans.append((track, name, start, end))

    def write(self, path: Path) -> None:
        """Write the spans as a Chrome trace, times in µs, a thread per track."""
        threads = {track: i for i, track in enumerate(sorted({s[0] for s in self.spans}))}
        events: list[dict[str, object]] = [
            {"ph": "M", "pid": 0, "tid": i, "name": "thread_name", "args": {"name": track}}
            for track, i in threads.items()
        ]
        events += [
            {
                "ph": "X", "pid": 0, "tid": threads[track], "name": name,
                "ts": start * 1e6, "dur": (end - start) * 1e6,
            }
            for track, name, start, end in self.spans
        ]  # fmt: skip
        with written_beside(path) as file:
            file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
