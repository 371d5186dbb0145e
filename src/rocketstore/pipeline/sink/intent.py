"""Intent and done marks: what makes a batch take effect once, whatever is killed where.

``sink/intent.json``
    Written and synced before the first byte of a batch is appended, deleted after its done mark.
    Says where its records go, and their checksum: a start-up can tell from the log what happened.
``sink/done/<sinkId>.json``
    Numbers of the batches of a sink that are in the store.

Law: these files are read strictly. A mark that cannot be read is an error and never "not done",
since that would append a batch twice. Pure formats: who writes them, and when, is `driver_commit`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rocketstore.errors import ConfigError, StoreDamagedError
from rocketstore.format.record import crc32
from rocketstore.pipeline.sink.staging import SINK_DIRECTORY, StagedFile

INTENT_FILE_NAME: Final = "intent.json"
DONE_DIRECTORY: Final = "done"

_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What is about to be appended.

    Attributes
    ----------
    job
        Name of the directory with the staged files.
    sink_id, batch_id
        None for a write that asked for no exactly-once.
    start
        Physical offset of the log's end when the intent was written.
    length
        From there to the end of the last record, BLANKs between files included.
    crc
        CRC-32 of the records, without BLANKs.
    messages
        How many they are.
    runs
        Physical offset and bytes of the records in each CommitLog file.
    file_start, file_size
        Of the last CommitLog file at that time; `file_start` is -1 without any.
    first_offsets
        Topic, queue and queue offset of the first record in each queue.
    files
        Staged files, in order.
    skipped
        Records (first, and one behind the last, counted over all files) that an earlier commit of
        this batch, which was interrupted, has brought into the log.
    """

    job: str
    sink_id: str | None
    batch_id: int | None
    start: int
    length: int
    crc: int
    messages: int
    store_timestamp_ms: int
    runs: tuple[tuple[int, int], ...]
    file_start: int
    file_size: int
    first_offsets: tuple[tuple[str, int, int], ...]
    files: tuple[StagedFile, ...]
    skipped: tuple[tuple[int, int], ...] = ()

    @property
    def title(self) -> str:
        """The batch, as messages to people name it."""
        if self.sink_id is None:
            return f"write {self.job}"
        return f"batch {self.batch_id} of sink {self.sink_id}"

    def encode(self) -> bytes:
        """Return the file."""
        return _encode(asdict(self) | {"files": [list(one) for one in self.files]})

    @classmethod
    def decode(cls, content: bytes, path: Path) -> Intent:
        """Read the file.

        Raises
        ------
        StoreDamagedError
            It is none, or was changed.
        """
        fields = _decode(content, path)
        try:
            for name in ("runs", "first_offsets", "skipped"):
                fields[name] = tuple(tuple(one) for one in fields[name])
            fields["files"] = tuple(StagedFile(*one) for one in fields["files"])
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise _damaged(path, f"fields are missing or unknown ({error})") from error


@dataclass(frozen=True)
class DoneMarks:
    """The batches of one sink that are in the store.

    Attributes
    ----------
    ranges
        First and last number of each run of numbers, in order; a stream's are one run.
    last
        About the batch that came last: its number, where it went, how many messages.
    """

    sink_id: str
    ranges: tuple[tuple[int, int], ...] = ()
    last: dict[str, int] = field(default_factory=dict)

    def __contains__(self, batch_id: int) -> bool:
        return any(first <= batch_id <= last for first, last in self.ranges)

    def marking(self, batch_id: int, **about: int) -> DoneMarks:
        """Return the marks with one more."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted((*self.ranges, (batch_id, batch_id))):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return replace(self, ranges=tuple(merged), last={"batch_id": batch_id, **about})

    def refuse_older(self, batch_id: int, root: str | Path) -> None:
        """Refuse a stream's batch below the last one: of one checkpoint Spark repeats only that.

        Raises
        ------
        ConfigError
            It comes from another checkpoint.
        """
        last = self.last.get("batch_id", -1)
        if batch_id < last:
            raise ConfigError(
                f"{root} has batches of sinkId {self.sink_id} up to {last}, and batch {batch_id} "
                "comes again: the sinkId was used with another checkpoint; nothing was appended",
                key="sinkId",
                value=self.sink_id,
                hint="start the query with that checkpoint, or give it a new sinkId, under which "
                "everything it reads is appended, also what is in the store already",
            )

    def encode(self) -> bytes:
        """Return the file."""
        return _encode(asdict(self))

    @classmethod
    def decode(cls, content: bytes, path: Path) -> DoneMarks:
        """Read the file; raises `StoreDamagedError` as `Intent.decode`."""
        fields = _decode(content, path)
        try:
            fields["ranges"] = tuple((int(first), int(last)) for first, last in fields["ranges"])
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, f"fields are missing or unknown ({error})") from error


def intent_path(root: str | Path) -> Path:
    """Return where the intent of a store is."""
    return Path(root) / SINK_DIRECTORY / INTENT_FILE_NAME


def done_path(root: str | Path, sink_id: str) -> Path:
    """Return where the done marks of a sink are."""
    return Path(root) / SINK_DIRECTORY / DONE_DIRECTORY / f"{sink_id}.json"


def _encode(fields: dict[str, Any]) -> bytes:
    content = {"version": _VERSION, **fields}
    text = json.dumps(content, sort_keys=True)
    return json.dumps({"checksum": crc32(text.encode()), "content": content}, indent=1).encode()


def _decode(content: bytes, path: Path) -> dict[str, Any]:
    try:
        outer = json.loads(content)
        fields: dict[str, Any] = outer["content"]
        found = crc32(json.dumps(fields, sort_keys=True).encode())
        expected = outer["checksum"]
        version = fields.pop("version")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"it is no JSON of this form ({error})") from error
    if found != expected:
        raise _damaged(path, f"checksum {expected} expected, {found} found")
    if version != _VERSION:
        raise _damaged(path, f"version {_VERSION} expected, {version} found")
    return fields


def _damaged(path: Path, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"{path} cannot be trusted: {what}",
        hint="compare the end of the log with what was written last, then move the file away",
    )
