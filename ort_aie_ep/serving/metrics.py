"""What a server has done, for Prometheus: GET /metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.prefixes import COUNTED
from ort_aie_ep.running.turns import Piece, Usage
from ort_aie_ep.serving.engine import NumberedEvent
from ort_aie_ep.serving.models import Models

_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
# Of what is counted of prefixes: all else only grows.
_GAUGES = ("limit_bytes", "bytes", "blocks")


class Metrics(Collector):
    """The counters of one server."""

    def __init__(self, models: Models) -> None:
        self._models = models
        here = self._registry = CollectorRegistry()
        here.register(self)
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

    async def watched(self, events: AsyncGenerator[NumberedEvent]) -> AsyncGenerator[NumberedEvent]:
        """`events` of a request, counted."""
        start, first = time.monotonic(), True
        try:
            async with aclosing(events):
                async for event in events:
                    if first and isinstance(event[1], Piece | Usage):
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

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """What the models say now."""
        slots, texts = self._models.slots, self._models.turns
        for name, about, value in (
            ("slots", "texts that are written at the same time", slots),
            ("texts_running", "texts that have a slot", min(texts, slots)),
            ("texts_waiting", "texts that wait for a slot", max(texts - slots, 0)),
        ):
            yield GaugeMetricFamily(f"ort_aie_{name}", about, value)
        for name, about in COUNTED.items():
            kind = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
            family = kind(f"ort_aie_prefix_{name}", about, labels=["model"])
            for held in self._models.loaded:
                family.add_metric([held.offer.name], getattr(held.engine.counts, name))
            yield family

    def text(self) -> tuple[bytes, str]:
        """All of it, in Prometheus's format, and that format's content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
