"""Runs of numbers are the sets that they stand for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.rules import runs

NUMBERS = st.lists(st.integers(0, 60), max_size=30)


def as_set(found):
    numbers = [n for first, behind in found.tolist() for n in range(first, behind)]
    assert len(numbers) == len(set(numbers))
    assert numbers == sorted(numbers)
    edges = found.ravel().tolist()
    assert edges == sorted(set(edges))  # never empty, never touching
    return set(numbers)


def of(numbers):
    return runs.runs_of(np.array(numbers, dtype=np.int64))


@given(NUMBERS)
def test_numbers_in_any_order_are_kept(numbers):
    assert as_set(of(numbers)) == set(numbers)
    assert runs.count(of(numbers)) == len(set(numbers))
    assert runs.stop_of(of(numbers)) == max(numbers, default=-1) + 1


@given(st.lists(NUMBERS, max_size=4))
def test_joined_parts_are_the_union(parts):
    every = {number for part in parts for number in part}
    assert as_set(runs.joined([runs.pairs(of(part)) for part in parts])) == every


@given(NUMBERS, st.integers(0, 60), st.integers(0, 60))
def test_gaps_are_what_is_not_there(numbers, start, stop):
    assert as_set(runs.gaps(of(numbers), start, stop)) == set(range(start, stop)) - set(numbers)


@given(NUMBERS, NUMBERS)
def test_without_is_the_difference(ones, others):
    assert as_set(runs.without(of(ones), of(others))) == set(ones) - set(others)


@given(NUMBERS, st.integers(-1, 61))
def test_holds_tells_members(numbers, number):
    assert runs.holds(of(numbers), number) == (number in numbers)
