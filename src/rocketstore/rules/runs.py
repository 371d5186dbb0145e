"""Sets of whole numbers that come in long runs, as sorted arrays of pairs: first, and one past.

However a log was cut into tasks, the joined runs of a queue are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from rocketstore.native.row import Int64Array

    Runs: TypeAlias = Int64Array
    """Shape (n, 2): disjoint, sorted and not adjacent, unless a function says otherwise."""


def no_runs() -> Runs:
    """Return the empty set."""
    return np.empty((0, 2), dtype=np.int64)


def runs_of(numbers: Int64Array) -> Runs:
    """Return numbers, in any order and repeated or not, as runs."""
    return in_order(np.unique(numbers) if (numbers[1:] <= numbers[:-1]).any() else numbers)


def in_order(numbers: Int64Array) -> Runs:
    """Return numbers as runs in their own order, which may repeat and go back."""
    if not numbers.size:
        return no_runs()
    # Most are a few numbers, for which `np.diff` costs more than all else here.
    breaks = np.flatnonzero(numbers[1:] != numbers[:-1] + 1)
    if not breaks.size:
        return np.array([(numbers[0], numbers[-1] + 1)], np.int64)
    firsts = numbers[np.concatenate(([0], breaks + 1))]
    lasts = numbers[np.concatenate((breaks, [numbers.size - 1]))]
    return np.stack((firsts, lasts + 1), axis=1)


def joined(parts: Iterable[Runs | Sequence[Sequence[int]]]) -> Runs:
    """Return the union of sets whose runs may overlap."""
    arrays = [np.asarray(part, dtype=np.int64).reshape(-1, 2) for part in parts]
    every = np.concatenate([no_runs(), *arrays])
    if len(every) < 2:
        return every
    every = every[np.argsort(every[:, 0], kind="stable")]
    reached = np.maximum.accumulate(every[:, 1])
    begins = np.concatenate(([True], every[1:, 0] > reached[:-1]))
    ends = np.concatenate((begins[1:], [True]))
    return np.stack((every[begins, 0], reached[ends]), axis=1)


def gaps(runs: Runs, start: int, stop: int) -> Runs:
    """Return the numbers from `start` up to `stop` that are not in the set."""
    if start >= stop:
        return no_runs()
    inside = runs[(runs[:, 1] > start) & (runs[:, 0] < stop)]
    edges = np.concatenate(([start], inside.ravel(), [stop])).reshape(-1, 2)
    return edges[edges[:, 0] < edges[:, 1]]


def without(runs: Runs, others: Runs) -> Runs:
    """Return the numbers of one set that are not in another."""
    if not len(runs) or not len(others):
        return joined([runs])
    edges = np.concatenate((runs[:, 0], runs[:, 1], others[:, 0], others[:, 1]))
    one, other = np.ones(len(runs), np.int64), np.ones(len(others), np.int64)
    order = np.argsort(edges, kind="stable")
    depth = np.cumsum(np.concatenate((one, -one, 0 * other, 0 * other))[order])
    covered = np.cumsum(np.concatenate((0 * one, 0 * one, other, -other))[order])
    edges = edges[order]
    # After each edge the set is as its sums say, up to the next edge.
    wanted = np.flatnonzero((depth[:-1] > 0) & (covered[:-1] == 0) & (edges[:-1] < edges[1:]))
    return joined([np.stack((edges[wanted], edges[wanted + 1]), axis=1)])


def count(runs: Runs) -> int:
    """Return how many numbers a set has."""
    return int((runs[:, 1] - runs[:, 0]).sum())


def stop_of(runs: Runs) -> int:
    """Return one past the largest number; 0 for the empty set."""
    return int(runs[-1, 1]) if len(runs) else 0


def holds(runs: Runs, number: int) -> bool:
    """Whether a number is in the set."""
    at = int(np.searchsorted(runs[:, 0], number, side="right")) - 1
    return at >= 0 and number < int(runs[at, 1])


def pairs(runs: Runs) -> list[tuple[int, int]]:
    """Return plain numbers, for sending."""
    return [(first, stop) for first, stop in runs.tolist()]
