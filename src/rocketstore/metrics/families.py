"""Numbers of a store in the form of prometheus-client, taken at each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from rocketstore.storage.metric import Histogram, Metric

if TYPE_CHECKING:
    import prometheus_client.core as prometheus


class Families(Collector):
    """Yields what `metrics` returns."""

    def __init__(self, metrics: Callable[[], Iterable[Metric | Histogram]]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[prometheus.Metric]:
        """Yield every family with its values of this moment."""
        return map(_family, self._metrics())


def _family(one: Metric | Histogram) -> prometheus.Metric:
    if isinstance(one, Histogram):
        histogram = HistogramMetricFamily(one.name, one.text)
        buckets = list(zip(one.limits, map(float, accumulate(one.counts)), strict=True))
        histogram.add_metric([], buckets, sum_value=one.total)
        return histogram
    kind = GaugeMetricFamily if one.kind == "gauge" else CounterMetricFamily
    family = kind(one.name, one.text, labels=one.labels)
    for labels, value in one.values.items():
        family.add_metric(labels, value)
    return family
