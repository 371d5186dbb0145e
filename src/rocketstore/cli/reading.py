"""What commands that read a store say of what it has, and of what it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstore.cli.exit_codes import FINE
from rocketstore.cli.output import before_a_verdict, print_rows
from rocketstore.cli.wording import complain
from rocketstore.errors import NotFoundError, StoreError
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rocketstore.cli.options import Output
    from rocketstore.storage.read_only import ReadOnlyStore

_NAMES_SHOWN = 8


def queues_of(
    reader: ReadOnlyStore, topic: str, queue_id: int | None, output: Output
) -> list[QueueKey]:
    """Return the queues of a topic, or the requested one.

    If there is none, `output` gets an empty answer, and a `NotFoundError` says so.
    """
    say_cut_short(reader, topic)
    of_topic = reader.queues(topic)
    where = reader.layout.root
    topics = [] if of_topic else reader.topics()
    if topic in topics:  # its first message has come since
        of_topic = reader.queues(topic)
    if not of_topic:
        raise not_found(
            f"{where} has no topic {topic}",
            f"it has {listed(topics)}" if topics else _none_at_all(reader),
            output,
        )
    if queue_id is None:
        return of_topic
    if QueueKey(topic, queue_id) not in of_topic:
        numbers = [str(key.queue_id) for key in of_topic]
        raise not_found(
            f"topic {topic} of {where} has no queue {queue_id}", f"it has {listed(numbers)}", output
        )
    return [QueueKey(topic, queue_id)]


def _none_at_all(reader: ReadOnlyStore) -> str:
    from rocketstore.storage.files.lock import may_have_writer

    # The first message of a writer may have come since, or is not in its queue yet.
    if reader.earliest_log_timestamp() is None or may_have_writer(reader.layout.lock):
        return "it has no message yet"
    return "its log has messages, but no queue has them: see store verify"


def print_found(
    reader: ReadOnlyStore, known: Iterable[tuple[Any, ...]],
    find: Callable[..., tuple[object, ...]], output: Output, columns: Sequence[str],
    topic: str | None = None,
) -> int:  # fmt: skip
    """Print what is known and what `find` adds to it, or why it cannot; return the exit code."""
    codes = [FINE]

    def row(known: tuple[Any, ...]) -> dict[str, Any]:
        try:
            found = find(*known)
        except StoreError as error:
            codes.append(error.exit_code)
            found = *(None for _ in columns[len(known) :]), str(error)
        return dict(zip((*columns, "problem"), (*known, *found), strict=False))

    with before_a_verdict():
        print_rows(map(row, known), output, columns=columns, notes=("problem",))
        if len(codes) == 1:
            say_cut_short(reader, topic)
    return max(codes)


def say_cut_short(reader: ReadOnlyStore, topic: str | None = None) -> None:
    """Tell on stderr which queues, of a topic or of all, lost entries: messages are not shown."""
    if cut := list(reader.cut_short(topic)):
        queues = [
            f"{key} ends at queue offset {found[1]} instead of {known[1]}"
            if found[1] < known[1]
            else f"{key} begins at queue offset {found[0]} instead of {known[0]}"
            for key, found, known in cut
        ]
        complain(
            f"queues have lost entries, so messages are not shown: {listed(queues)}; an opening "
            "for writing, or store repair, makes them again"
        )


def not_found(what: str, hint: str | None, output: Output) -> NotFoundError:
    """Return the error for something that the store does not have, after an empty answer."""
    if output == "json":
        print("[]")
    return NotFoundError(what, hint=hint)


def say_shown(shown: int, total: int | str) -> None:
    """Tell on stderr that not everything was printed."""
    if isinstance(total, str) or shown < total:
        complain(f"{shown} of {total} shown; --max shows more")


def listed(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
