"""Import text files into a store: each line becomes a message."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from rocketstore.cli.options import must_exist
from rocketstore.cli.wording import STANDARD_INPUT
from rocketstore.errors import ConfigError, RefusedMessageError, StoreError
from rocketstore.message import Message
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from rocketstore.storage.store import BaseStore

BATCH_MESSAGES: Final = 256
"""Messages put at once: enough to spread the cost of a put, few enough to lose little work when
the disk fills up."""
BATCH_BYTES: Final = 1 * MiB
"""Bytes of lines held at once: a batch ends with the line that reaches them."""


class ImportTarget(NamedTuple):
    """Where lines go and what they carry."""

    topic: str
    queue_id: int
    tags: str | None
    key_pattern: re.Pattern[str] | None


def compile_key_pattern(pattern: str | None) -> re.Pattern[str] | None:
    """Return the compiled pattern; `ConfigError` where it is not a regular expression."""
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"--key-pattern is not a regular expression: {error}", value=pattern
        ) from error


def line_message(line: bytes, target: ImportTarget) -> Message:
    """Return the message of one line (without its line end).

    Its keys are what the key pattern's groups match, or its whole match where it has no group.
    """
    keys: tuple[str, ...] = ()
    if target.key_pattern is not None:
        found = target.key_pattern.search(line.decode("utf-8", "replace"))
        if found is not None:
            parts = found.groups() or (found.group(),)
            keys = tuple(word for part in parts if part for word in part.split())
    return Message(topic=target.topic, body=line, tags=target.tags, keys=keys)


def import_lines(
    store: BaseStore,
    lines: Iterable[bytes],
    target: ImportTarget,
    advance: Callable[[int], None],
    *,
    name: str,
) -> int:
    """Put every line, which ends in LF or CR LF, in order, and return how many there were.

    `advance` is called with the bytes of lines that were put. Where the store refuses one, the
    `RefusedMessageError` has the `name` of its file, and the lines before it are stored.
    """
    count = 0
    for batch in _batches(lines):
        messages = [
            line_message(line.removesuffix(b"\n").removesuffix(b"\r"), target) for line in batch
        ]
        try:
            result = store.put_batch(messages, queue_id=target.queue_id)
            is_refused = result.status is PutMessageStatus.MESSAGE_ILLEGAL
        except RefusedMessageError:
            is_refused = True
        if is_refused:
            # A batch has the size limit of one message: singly, lines may fit, or one is named.
            for number, message in enumerate(messages, start=count + 1):
                try:
                    single = store.put(message, target.queue_id)
                except RefusedMessageError as error:
                    raise _refused(name, number, error.message) from error
                _check(single, name, number)
        else:
            _check(result, name, count + 1)
        count += len(batch)
        advance(sum(map(len, batch)))
    return count


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if len(batch) >= BATCH_MESSAGES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check(result: PutResult, name: str, number: int) -> None:
    if result.status is not PutMessageStatus.PUT_OK:
        detail = "" if result.detail is None else f": {result.detail}"
        raise _refused(name, number, f"{result.status.value}{detail}")


def _refused(name: str, number: int, reason: str) -> RefusedMessageError:
    return RefusedMessageError(
        f"line {number} of {name} was not stored: {reason}",
        hint=f"the {number - 1} lines before it are",
    )


def check_input(path: Path) -> None:
    """Refuse what is not a file of lines, before a store is made for it; a pipe is allowed."""
    if str(path) == STANDARD_INPUT:
        return
    if path.is_dir():
        raise StoreError(f"{path} is a directory", hint="name text files in it")
    must_exist(path, "file")


@contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Open a file of lines, or standard input."""
    if str(path) == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with path.open("rb") as stream:
        yield stream
