"""Every record of a log is a row of the archive, once, and whatever is no record is kept beside."""

from __future__ import annotations

import pytest

from support.archiving import archived, rows, state
from support.golden_stores import STORES, golden_store
from support.pipeline_tables import read_table

STRETCHES = (30_000, 1 << 30)


@pytest.mark.parametrize("name", STORES)
def test_rows_are_those_of_the_data_source_however_the_log_is_split(name, tmp_path):
    source, _ = golden_store(name)
    expected = sorted(
        read_table(source, damage="skip", decompressBody=False),
        key=lambda row: row["physicalOffset"],
    )
    for stretch in STRETCHES:
        target = tmp_path / str(stretch)
        archived(source, target, stretch=stretch)
        assert [{name: row[name] for name in expected[0]} for row in rows(target)] == expected
        before = state(target)
        assert archived(source, target, stretch=stretch).run is None
        assert state(target) == before
