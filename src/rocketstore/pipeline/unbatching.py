"""The messages inside batches as rows of their own, for ``DataFrame.mapInArrow``.

Table ``messages`` has one row for each record. In a batch topic that row holds a batch, whose
messages are what consumers get: this makes a row of each.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rocketstore.errors import ConfigError
from rocketstore.format.properties import decode_properties, split_keys
from rocketstore.format.record import body_crc
from rocketstore.message import INNER_BATCH
from rocketstore.rules.batch_entries import inner_place
from rocketstore.rules.inner_messages import OF_THE_RECORD, whole_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyarrow import RecordBatch

_NEEDED: Final = ("sysFlag", "queueOffset", "body", "properties")
_ROWS_AT_ONCE: Final = 10_000


def inner_messages(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    """Yield rows of table ``messages``, each batch replaced by its messages.

    ``frame.mapInArrow(inner_messages, frame.schema)``. A message has queue offset, flag, body,
    properties, tags and keys of its own, and all else from its record. A batch that breaks
    off gives the messages before the break, as in a get; one whose numbers are wrong, or that no
    reader here can inflate, gives none.

    Raises
    ------
    ConfigError
        One of the columns sysFlag, queueOffset, body and properties is not there.
    """
    for batch in batches:
        if missing := {*_NEEDED} - {*batch.schema.names}:
            what = f"inner_messages needs column {min(missing)}"
            raise ConfigError(what, key="columns", value=min(missing))
        is_batch = pc.not_equal(pc.bit_wise_and(batch.column("sysFlag"), INNER_BATCH), 0)
        yield batch.filter(pc.invert(is_batch))
        held = batch.filter(is_batch)
        found = (
            (row, values)
            for row in range(len(held))
            for values in _messages_of(*(held.column(name)[row].as_py() for name in _NEEDED))
        )
        while some := list(islice(found, _ROWS_AT_ONCE)):
            rows, own = zip(*some, strict=True)
            repeated = held.take(pa.array(rows))
            columns = [
                pa.array([one[field.name] for one in own], field.type)
                if field.name in own[0]
                else repeated.column(field.name)
                for field in held.schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=held.schema)


def _messages_of(
    sys_flag: int, base: int, body: bytes, properties: list[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yield the fields that differ between the messages of a record."""
    _, count = inner_place(sys_flag, base, dict(properties))
    for number, (flag, content, block) in enumerate(whole_messages(body, count)):
        own = decode_properties(block)
        yield {
            "queueOffset": base + number,
            "sysFlag": sys_flag & ~OF_THE_RECORD,
            "flag": flag,
            "body": content,
            "bodyCRC": body_crc(content),
            "properties": list(own.items()),
            "tags": own.get("TAGS"),
            "keys": split_keys(own.get("KEYS", "")),
            "uniqKey": own.get("UNIQ_KEY"),
        }
