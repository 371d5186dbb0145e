"""The page of requests says what the table of requests does."""

from rocketstore.nameserver.requests import NameServer
from rocketstore.remoting.fields import field_rows
from support.page_tables import table_with


def cells(header):
    rows = () if header is None else field_rows(header)
    names = [(f"**{row.name}**" if row.is_required else row.name, row.type) for row in rows]
    return ", ".join(map(" ".join, names)) or "-"


def test_the_page_has_every_request_with_its_fields():
    page = [tuple(row.values()) for row in table_with("reference/requests.md", "code", "name")]
    rows = NameServer().requests.rows
    assert page == [
        (str(int(code)), f"`{row.code.name}`", cells(row.header), cells(row.reply))
        for code, row in sorted(rows.items())
    ]
