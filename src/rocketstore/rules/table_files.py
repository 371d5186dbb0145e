"""The JSON tables of a store: which there are, and that a backup stands in for a broken one.

See docs/decisions/0036-broken-tables.md.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from rocketstore.errors import FormatError
from rocketstore.events import get_logger
from rocketstore.format import metadata_json
from rocketstore.format.file_name import CONFIG_DIRECTORY

_log: Final = get_logger(__name__)
TABLES: Final[dict[str, Any]] = {
    metadata_json.TOPICS_FILE: metadata_json.TopicTable,
    metadata_json.CONSUMER_OFFSETS_FILE: metadata_json.ConsumerOffsets,
    metadata_json.LMQ_CONSUMER_OFFSETS_FILE: metadata_json.ConsumerOffsets,
    metadata_json.DELAY_OFFSETS_FILE: metadata_json.DelayOffsets,
    metadata_json.SUBSCRIPTION_GROUPS_FILE: metadata_json.SubscriptionGroupTable,
    metadata_json.CONSUMER_FILTERS_FILE: metadata_json.ConsumerFilterTable,
}
"""The JSON tables that are known, by file name."""

MISSING: Final = "missing"

NO_FILE: Final = "it is not a regular file"
"""Why a directory cannot be read as a table or another small file."""

_T = TypeVar("_T")

Content = bytes | str | None
"""A file's content; why it cannot be read; None where there is no file."""


def read_table(
    path: str, content_of: Callable[[str], Content], decode: Callable[[bytes], _T]
) -> _T | None:
    """Return a table, or its backup where it is not there or cannot be used; None without either.

    Every reader of tables comes here: see docs/decisions/0036-broken-tables.md. A `FormatError`
    says that neither can be used, and what is wrong with each.
    """
    wrong: list[str] = []
    for name in (path, path + metadata_json.BACKUP_SUFFIX):
        content = content_of(name)
        if isinstance(content, str):
            wrong.append(f"{name}: {content}")
        elif content is not None:
            try:
                table = decode(content)
            except FormatError as error:
                wrong.append(f"{name}: {error.message}")
                continue
            for reason in wrong:
                _log.warning("table.broken", reason=reason, read_instead=name)
            return table
    if not wrong:
        return None
    raise FormatError(
        "; ".join(wrong),
        hint="bring the table back from a copy or a replica, or move it and its backup (.bak) away "
        "to go on without it",
    )


def table_of(content_of: Callable[[str], Content], name: str) -> Any:
    """Return a table, or else its backup; None where neither can be read."""
    shown = f"{CONFIG_DIRECTORY}/{name}"
    table, _ = decoded(content_of(shown), name)
    return table or decoded(content_of(shown + metadata_json.BACKUP_SUFFIX), name)[0]


def decoded(content: Content, name: str) -> tuple[Any, str | None]:
    """Return a table, or why it cannot be read."""
    if not isinstance(content, bytes):
        return None, MISSING if content is None else content
    if not content.strip():
        return None, "empty"
    try:
        return metadata_json.decode_table(content, TABLES[name]), None
    except FormatError as error:
        return None, str(error)
