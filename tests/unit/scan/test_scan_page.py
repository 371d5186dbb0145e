"""docs/how-it-works/scan.md names every column, stop reason and kind of damage there is."""

import re

import pyarrow as pa

from rocketstore.scan.arrow import SCHEMA
from rocketstore.scan.columns import Column, StopReason
from rocketstore.scan.scanner import DamageReason
from support.page_tables import DOCS, table_with

PAGE = "how-it-works/scan.md"


def names(heading):
    rows = table_with(PAGE, heading)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row[heading])]


def test_the_page_names_every_column_once():
    assert sorted(names("Columns")) == sorted(column.name for column in Column)


def test_the_page_names_every_stop_reason_in_order():
    assert names("Stop reason") == [reason.name for reason in StopReason]


def test_every_kind_of_damage_is_on_the_page():
    kinds = {reason.name for reason in DamageReason} - {"UNWRITTEN_HOLE"}
    assert kinds <= set(names("Stop reason"))
    assert "`UNWRITTEN_HOLE`" in (DOCS / PAGE).read_text("utf-8")


def test_the_page_names_every_arrow_column_with_its_type():
    types = {"int64": pa.int64(), "int32": pa.int32(), "string": pa.string(), "binary": pa.binary()}
    found = {
        name: types[row["Type"]]
        for row in table_with(PAGE, "Arrow columns", "Type")
        for name in re.findall(r"`(\w+)`", row["Arrow columns"])
    }
    assert found == {field.name: field.type for field in SCHEMA}
