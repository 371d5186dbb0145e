"""Every option of the source, its streams and its sink, and how each text becomes a value.

Law: no option is ever ignored. One that is not in the table, or means nothing where it is given, is
an error that names it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.errors import ConfigError
from rocketstore.pipeline.columns import RECORD_TABLES, TABLES
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM: Final = "stream"
"""Use of an option in ``readStream``; in ``read`` its use is the name of a table."""

SINK: Final = "sink"
"""Use of an option in ``write`` and ``writeStream``."""

SPARKS_OWN: Final = frozenset(
    {
        *("checkpointlocation", "queryname", "serialization.format"),
        *("location", "owner", "provider", "external", "comment", "is_managed_location"),
    }
)
"""What Spark itself adds to the options, the second line for a table of its catalog; so are names
that begin with ``option.``, each again without that."""

_READS: Final = frozenset(TABLES)
_ANY: Final = _READS | {STREAM}
_RECORDS: Final = RECORD_TABLES | {STREAM}
_MESSAGES: Final = frozenset({"messages", STREAM})
_QUEUES: Final = _RECORDS | {"consumequeue"}
_TOPICS: Final = _QUEUES | {"queues", "topics", "consumers"}
_BATCH_QUEUES: Final = RECORD_TABLES | {"consumequeue"}
_CUT: Final = _QUEUES | {"index", "damage"}
_INDEX: Final = frozenset({"index"})
_STREAM: Final = frozenset({STREAM})
_SINK: Final = frozenset({SINK})


class Option(NamedTuple):
    """One option: where it means something (tables, `STREAM`, `SINK`), default and meaning."""

    name: str
    uses: frozenset[str]
    default: str
    meaning: str


OPTIONS: Final = (
    Option("path", _ANY, "-", "stores, separated by commas, or a directory of stores"),
    Option("paths", _ANY, "-", "the same as a JSON array, as `load([...])` gives it"),
    Option("table", _ANY, "messages", "table to read; streams have `messages`, `commitlog`"),
    Option("brokerName", _ANY, "directory's name", "name of the store, one per store"),
    Option("storePathCommitLog", _ANY, "-", "every directory of the log, when not `commitlog`"),
    Option("columns", _ANY, "all", "columns to read, separated by commas, in this order"),
    Option("includeBody", _MESSAGES, "true", "whether there is a column `body`"),
    Option("includeProperties", _RECORDS, "true", "whether there is a column `properties`"),
    Option("decompressBody", _MESSAGES, "true", "whether zlib bodies are inflated"),
    Option("subscribe", _TOPICS, "-", "topics, separated by commas"),
    Option("topic", _TOPICS, "-", "the same as `subscribe`"),
    Option("subscribePattern", _TOPICS, "-", "regular expression that a whole topic matches"),
    Option("assign", _TOPICS, "-", 'queues: `{"topic":[0,1]}`'),
    Option("startingOffsets", _BATCH_QUEUES, "earliest", "first queue offset of each queue, JSON"),
    Option("endingOffsets", _BATCH_QUEUES, "latest", "queue offset after each queue's last, JSON"),
    Option("startingTimestamp", _RECORDS, "-", "earliest store time, in ms or ISO 8601"),
    Option("endingTimestamp", RECORD_TABLES, "-", "store time to stop before, in ms or ISO 8601"),
    Option("subExpression", _RECORDS, "*", "tags, with two bars between several"),
    Option("maxSplitBytes", _CUT, "256 MiB", "most bytes of one task; `64m`, `1g` are understood"),
    Option("minPartitions", _CUT, "1", "fewest tasks to make, where there are as many bytes"),
    Option("failOnDataLoss", _QUEUES, "true", "whether missing files or offsets are an error"),
    Option("damage", _RECORDS, "fail", "`fail`, `skip` or `report`"),
    Option("maxHashSlotNum", _INDEX, "learnt", "slots of an index file"),
    Option("maxIndexNum", _INDEX, "learnt", "items of an index file"),
    Option("startingOffsets", _STREAM, "latest", "where a new query begins, or JSON of it"),
    Option("startingOffsetsByTimestamp", _STREAM, "-", '`{"topic":{"0":ms}}`: store times'),
    Option("startingOffsetsByTimestampStrategy", _STREAM, "latest", "`error` where none is later"),
    Option("maxOffsetsPerTrigger", _STREAM, "-", "most records of a batch, of each store"),
    Option("maxBytesPerTrigger", _STREAM, "-", "most bytes of records of a batch, of each store"),
    Option("minOffsetsPerTrigger", _STREAM, "-", "records that a batch waits for"),
    Option("maxTriggerDelay", _STREAM, "15m", "longest wait for `minOffsetsPerTrigger`"),
    Option("path", _SINK, "-", "directory of the store; made when it is not there"),
    Option("topic", _SINK, "-", "topic of every message; wins over the column `topic`"),
    Option("sinkId", _SINK, "-", "name of this writer; needed by `writeStream`"),
    Option("batchId", _SINK, "-", "number of this batch; of `write` only, together with `sinkId`"),
    Option("queueCount", _SINK, "4", "queues of a topic among which rows without `queueId` go"),
    Option("chunkBytes", _SINK, "8 MiB", "bytes that a task or the commit holds at a time"),
    Option("lockTimeout", _SINK, "1m", "how long to wait for a store that another process writes"),
    Option("storeConfig", _SINK, "-", "a `broker.conf` with the settings of the store"),
    Option("mappedFileSizeCommitLog", _SINK, "learnt, or 1 GiB", "bytes of a CommitLog file"),
    Option("mappedFileSizeConsumeQueue", _SINK, "learnt, or 6 MB", "bytes of a queue file"),
    Option("maxHashSlotNum", _SINK, "learnt, or 5 million", "slots of an index file"),
    Option("maxIndexNum", _SINK, "learnt, or 20 million", "items of an index file"),
    Option("maxMessageSize", _SINK, "4 MiB", "largest body in bytes"),
)  # fmt: skip
"""The page's table; names are matched without regard to case, as Spark's are."""

_SIZE_UNITS: Final = {"": 1, "b": 1, "k": 1024, "m": MiB, "g": 1024 * MiB}
_TIME_UNITS: Final = {"ms": 0.001, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MAX: Final = 2**63 - 1


class GivenOptions(Mapping[str, str]):
    """Options as they were given, under their names in the table; each is read as what it is.

    Parameters
    ----------
    given
        Names in any case, and values as text.
    uses
        What the options are given to: tables, `STREAM`, `SINK`; each must mean something to one.

    Raises
    ------
    ConfigError
        There is no such option.
    """

    def __init__(self, given: Mapping[str, str], uses: frozenset[str]) -> None:
        known = {one.name.lower(): one.name for one in OPTIONS if one.uses & uses}
        self._values = {}
        for key, value in given.items():
            if key.lower() in SPARKS_OWN or key.lower().startswith("option."):
                continue
            name = known.get(key.lower())
            if name is None:
                raise _not_known(key, value, uses, known)
            self._values[name] = value

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def refused(self, name: str, what: str, hint: str | None = None) -> ConfigError:
        """Return the error that an option has a value that it cannot have."""
        return refused(name, self.get(name, ""), what, hint)

    def check_table(self, table: str) -> None:
        """Refuse options that mean nothing for a table.

        Raises
        ------
        ConfigError
            One is given.
        """
        for name in self:
            uses = set().union(*(one.uses for one in OPTIONS if one.name == name)) - {SINK}
            if table in uses:
                continue
            if uses == {STREAM}:
                raise self.refused(name, "is one of streams", "read with spark.readStream")
            hint = f"it belongs to {', '.join(sorted(uses))}"
            raise self.refused(name, f"does not apply to table {table}", hint)

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        text = self.get(name, str(default)).strip().lower()
        if text not in ("true", "false"):
            raise self.refused(name, "must be true or false")
        return text == "true"

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return one of some words, in lower case; the first one where nothing is given."""
        value = self.get(name, allowed[0]).strip().lower()
        if value not in allowed:
            raise self.refused(name, f"must be one of {', '.join(allowed)}")
        return value

    def number(self, name: str, least: int = 0, most: int = _INT64_MAX) -> int | None:
        """Return a whole number; None where nothing is given."""
        if name not in self:
            return None
        text = self[name].strip()
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not is_number or not least <= int(text) <= most:
            limits = f"of at least {least}" if most == _INT64_MAX else f"from {least} to {most}"
            raise self.refused(name, f"must be a number {limits}")
        return int(text)

    def byte_count(self, name: str, most: int = _INT64_MAX) -> int | None:
        """Return a number of bytes such as ``64m``; None where nothing is given."""
        count = self._measured(name, r"(\d{1,18})\s*([kmg]?)i?b?", _SIZE_UNITS)
        if count is not None and not 1 <= count <= most:
            limit = "" if most == _INT64_MAX else f" up to {most // MiB}m"
            raise self.refused(name, f"must be a number of bytes{limit}, such as 268435456 or 256m")
        return None if count is None else int(count)

    def seconds(self, name: str) -> float | None:
        """Return a length of time such as ``90s`` or ``15m``; None where nothing is given."""
        count: float | None = self._measured(name, r"(\d{1,9})\s*(ms|s|m|min|h|d|)", _TIME_UNITS)
        if count is not None and count < 0:
            raise self.refused(name, "must be a length of time, such as 500ms, 90s, 15m or 1h")
        return count

    def timestamp_ms(self, name: str) -> int | None:
        """Return a time in ms, given so or in ISO 8601; None where nothing is given."""
        if name not in self:
            return None
        text = self[name].strip()
        if text.isascii() and text.isdigit() and len(text) <= len(str(_INT64_MAX)):
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            what = "must be ms since 1970, or ISO 8601 such as 2026-01-31T12:00:00Z"
            raise self.refused(name, what) from error
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        # Store times are whole milliseconds: what is from or before a part of one is from the next.
        return -((_EPOCH - zoned) // timedelta(milliseconds=1))

    def names(self, name: str) -> tuple[str, ...]:
        """Return names that stand between commas; none where nothing is given."""
        return tuple(part.strip() for part in self.get(name, "").split(",") if part.strip())

    def text_list(self, name: str) -> tuple[str, ...]:
        """Return the texts of a JSON array."""
        try:
            listed = json.loads(self[name])
        except ValueError as error:
            raise self.refused(name, "is no JSON array") from error
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise self.refused(name, "is no JSON array of texts")
        return tuple(listed)

    def _measured(self, name: str, form: str, units: Mapping[str, Any]) -> Any:
        """Return a number times its unit, -1 where neither stands; None where nothing is given."""
        if name not in self:
            return None
        match = re.fullmatch(rf"\s*{form}\s*", self[name], re.IGNORECASE | re.ASCII)
        return int(match[1]) * units[match[2].lower()] if match else -1


def refused(name: str, value: str, what: str, hint: str | None = None) -> ConfigError:
    """Return the error that an option has a value that it cannot have."""
    return ConfigError(
        f"option {name} {what}, found {value!r:.200}", key=name, value=value, hint=hint
    )


def _not_known(key: str, value: str, uses: frozenset[str], known: Mapping[str, str]) -> ConfigError:
    """Return the error that an option is not known where it is given."""
    (name, *_) = [one.name for one in OPTIONS if one.name.lower() == key.lower()] or [""]
    if name:
        where = {SINK: "a sink", STREAM: "a stream"}.get("".join(uses), "a read")
        elsewhere = sorted(set().union(*(one.uses for one in OPTIONS if one.name == name)))
        return refused(
            name, value, f"does not apply to {where}", f"it belongs to {', '.join(elsewhere)}"
        )
    near = difflib.get_close_matches(key.lower(), known, n=1)
    hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(known.values())}"
    return refused(key, value, "is unknown", hint)
