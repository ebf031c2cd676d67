"""What a server has done, for Prometheus: GET /metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.turns import Accepted, Usage
from ort_aie_ep.serving.engine import NumberedEvent

_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        here = self._registry = CollectorRegistry()
        gauges = {
            "slots": "texts that are written at the same time",
            "texts_running": "texts that have a slot",
            "texts_waiting": "texts that wait for a slot",
        }
        self._gauges = {
            name: Gauge(f"ort_aie_{name}", about, registry=here) for name, about in gauges.items()
        }
        counters = {
            "prompt_tokens": "tokens of prompts",
            "cached_tokens": "tokens of prompts that a cache had",
            "completion_tokens": "new tokens",
        }
        self._counters = {
            name: Counter(f"ort_aie_{name}", about, registry=here)
            for name, about in counters.items()
        }
        self._ended = Counter("ort_aie_texts", "texts, by how they ended", ["end"], registry=here)
        self._first = Histogram(
            "ort_aie_first_token_seconds", "from a request to its first token",
            buckets=_SECONDS, registry=here,
        )  # fmt: skip
        self._whole = Histogram(
            "ort_aie_request_seconds", "from a request to its end",
            buckets=_SECONDS, registry=here,
        )  # fmt: skip

    async def watched(self, events: AsyncIterator[NumberedEvent]) -> AsyncIterator[NumberedEvent]:
        """`events` of a request, counted."""
        start, first = time.monotonic(), True
        try:
            async for event in events:
                if first and not isinstance(event[1], Accepted):
                    self._first.observe(time.monotonic() - start)
                    first = False
                if isinstance(event[1], Usage):
                    self._count(event[1])
                yield event
        except AieError:
            self._ended.labels("error").inc()
            raise
        finally:
            self._whole.observe(time.monotonic() - start)

    def _count(self, usage: Usage) -> None:
        for name, counter in self._counters.items():
            counter.inc(getattr(usage, name))
        self._ended.labels(usage.finish_reason).inc()

    def text(self, slots: int, texts: int) -> tuple[bytes, str]:
        """All of it, and how many of `slots` the texts have that run or wait, in Prometheus's
        format, and that format's content type."""
        now = slots, min(texts, slots), max(texts - slots, 0)
        for gauge, value in zip(self._gauges.values(), now, strict=True):
            gauge.set(value)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
