"""Intent and ledger: what makes a batch take effect once, whatever is killed where.

``sink/intent.json``
    Written and synced before the first message of a batch is appended, deleted after the batch is
    in the ledger. Says where its messages go: what a killed commit did is read in the log.
``sink/done/<sinkId>.json``
    The ledger of a sink: numbers of its batches that are in the store.

Law: these files are read strictly. A ledger that cannot be read is an error and never "not done",
since that would append a batch twice. Pure formats: who writes them, and when, is `sink_commit`.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import TypeVar

import msgspec

from rocketstore.errors import ConfigError, StoreDamagedError
from rocketstore.format.record import crc32
from rocketstore.pipeline.sink.sink_staging import SINK_DIRECTORY, StagedFile

Ranges = tuple[tuple[int, int], ...]
"""First number of each run of numbers, and the one after its last, in order."""


class Intent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is about to be appended.

    Attributes
    ----------
    job
        Name of the directory with the staged files.
    sink_id, batch_id
        None for a write that asked for no exactly-once.
    start
        Physical offset of the log's end when the intent was written.
    store_timestamp_ms
        Of every message that is appended under it.
    present
        Rows, counted over all files, that earlier attempts have brought into the log for good.
    """

    job: str
    sink_id: str | None
    batch_id: int | None
    start: int
    store_timestamp_ms: int
    files: tuple[StagedFile, ...]
    present: Ranges = ()

    @property
    def title(self) -> str:
        """The batch, as messages to people name it."""
        if self.sink_id is None:
            return f"write {self.job}"
        return f"batch {self.batch_id} of sink {self.sink_id}"


class Ledger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The batches of one sink that are in the store; a stream's are one run of numbers."""

    sink_id: str
    batches: Ranges = ()
    last: int = -1

    def __contains__(self, batch_id: int) -> bool:
        return is_among(self.batches, batch_id)

    def with_batch(self, batch_id: int) -> Ledger:
        """Return the ledger with one more batch."""
        merged: list[tuple[int, int]] = []
        for first, stop in sorted((*self.batches, (batch_id, batch_id + 1))):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((first, stop))
        return Ledger(sink_id=self.sink_id, batches=tuple(merged), last=batch_id)

    def refuse_older(self, batch_id: int, path: Path) -> None:
        """Refuse a stream's batch below the last one: of one checkpoint Spark repeats only that.

        Raises
        ------
        ConfigError
            It comes from another checkpoint.
        """
        if batch_id < self.last:
            raise ConfigError(
                f"{path} has batches of sinkId {self.sink_id} up to {self.last}, and batch "
                f"{batch_id} comes again: the sinkId was used with another checkpoint; nothing was "
                "appended",
                key="sinkId",
                value=self.sink_id,
                hint="start the query with that checkpoint, or give it a new sinkId, under which "
                "everything it reads is appended, also what is in the store already",
            )


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    crc32: int
    content: msgspec.Raw


_Content = TypeVar("_Content", Intent, Ledger)


def is_among(ranges: Ranges, number: int) -> bool:
    """Whether a number is in one of the ranges."""
    at = bisect_right(ranges, number, key=lambda run: run[0]) - 1
    return at >= 0 and number < ranges[at][1]


def intent_path(root: str | Path) -> Path:
    """Return where the intent of a store is."""
    return Path(root) / SINK_DIRECTORY / "intent.json"


def ledger_path(root: str | Path, sink_id: str) -> Path:
    """Return where the ledger of a sink is."""
    return Path(root) / SINK_DIRECTORY / "done" / f"{sink_id}.json"


def read_intent(root: str | Path) -> Intent | None:
    """Return the intent that was left in a store; raises `StoreDamagedError` for a broken one."""
    return _read(intent_path(root), Intent)


def read_ledger(root: str | Path, sink_id: str) -> Ledger:
    """Return the ledger of a sink, an empty one where there is none; raises as `read_intent`."""
    return _read(ledger_path(root, sink_id), Ledger) or Ledger(sink_id=sink_id)


def sealed(content: Intent | Ledger) -> bytes:
    """Return the file of an intent or a ledger."""
    encoded = msgspec.json.encode(content)
    return msgspec.json.encode(_Sealed(crc32(encoded), msgspec.Raw(encoded)))


def _read(path: Path, kind: type[_Content]) -> _Content | None:
    what = "expected a checksum and its content"
    try:
        outer = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        found = crc32(outer.content)
        what = f"checksum {outer.crc32} expected, {found} found"
        if found == outer.crc32:
            return msgspec.json.decode(outer.content, type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        what = f"{what}: {error}"
    raise StoreDamagedError(
        f"{path} cannot be trusted: {what}",
        hint="compare the end of the log with what was written last, then move the file away",
    )
