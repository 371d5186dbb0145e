"""A number that a part of a store reports, under its name for Prometheus."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple


class Metric(NamedTuple):
    """A family of numbers by the values of its labels; without labels there is one number."""

    kind: Literal["gauge", "counter"]
    name: str
    text: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


class Histogram(NamedTuple):
    """How many of `counts` lay between one limit and the next, of which the last is "+Inf".

    `total` is the sum of what was counted, if it is known.
    """

    name: str
    text: str
    counts: Sequence[int]
    limits: Sequence[str]
    total: float | None = None


def metric(
    kind: Literal["gauge", "counter"], name: str, text: str, value: float | Mapping[str, float],
    label: str = "",
) -> Metric:  # fmt: skip
    """Return a family of one number, or of one for each value of a label."""
    if isinstance(value, Mapping):
        return Metric(kind, name, text, {(of,): number for of, number in value.items()}, (label,))
    return Metric(kind, name, text, {(): value})


gauge: Final = partial(metric, "gauge")
counter: Final = partial(metric, "counter")
