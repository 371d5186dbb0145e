"""The page of each format has the field table of its module."""

from itertools import accumulate

import pytest

from rocketstore.format import (
    batch_queue_entry,
    checkpoint,
    client_batch,
    index_file,
    queue_entry,
    queue_extension,
    record,
)
from support.page_tables import table_with

TYPE_NAMES = {"i": "int", "I": "unsigned int", "q": "long", "h": "short", "b": "byte", "s": "bytes"}
"""What a page calls the codes of `struct`."""

COLUMNS = ("field", "width", "type", "unit", "meaning")


@pytest.mark.parametrize(
    ("page", "number", "fields"),
    [
        ("batch-consume-queue", 0, batch_queue_entry.FIELDS),
        ("checkpoint", 0, checkpoint.FIELDS),
        ("client-batch", 0, client_batch.FIELDS),
        ("consume-queue", 0, queue_entry.FIELDS),
        ("index-file", 0, index_file.HEADER_FIELDS),
        ("index-file", 1, index_file.ITEM_FIELDS),
        ("queue-extension", 0, queue_extension.FIELDS),
        ("record", 0, record.FIELDS),
    ],
)
def test_page_has_the_field_table_of_the_module(page, number, fields):
    table = table_with(f"format/{page}.md", *COLUMNS, number=number)
    assert [tuple(row[column].strip("`") for column in COLUMNS) for row in table] == [
        (row.name, row.width, TYPE_NAMES[row.code], row.unit, row.meaning) for row in fields
    ]
    if all(row.width.isdigit() for row in fields):
        ends = accumulate((int(row.width) for row in fields), initial=0)
        assert [int(row["offset"]) for row in table] == list(ends)[:-1]
