"""The field table of a format page whose fields have no fixed place, to compare with a module's."""

from rocketstore.format import Field
from support.page_tables import table_with

TYPE_NAMES = {
    "i": "int",
    "I": "unsigned int",
    "q": "long",
    "h": "short",
    "b": "byte",
    "s": "bytes",
}
"""What a page calls the codes of `struct`."""


def page_rows(page: str) -> list[tuple[str, ...]]:
    """Return the rows of the field table of ``docs/format/<page>.md``."""
    columns = ("field", "width", "type", "unit", "meaning")
    table = table_with(f"format/{page}.md", *columns)
    return [tuple(row[column].strip("`") for column in columns) for row in table]


def module_rows(fields: tuple[Field, ...]) -> list[tuple[str, ...]]:
    """Return what the page of `fields` has to say."""
    return [(row.name, row.width, TYPE_NAMES[row.code], row.unit, row.meaning) for row in fields]
