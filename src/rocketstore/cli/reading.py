"""What commands that read a store say of what it has, and of what it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.cli.wording import complain
from rocketstore.errors import NotFoundError
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from rocketstore.cli.options import Output
    from rocketstore.storage.read_only import ReadOnlyStore

_NAMES_SHOWN = 8


def queues_of(
    reader: ReadOnlyStore, topic: str, queue_id: int | None, output: Output
) -> list[QueueKey]:
    """Return the queues of a topic, or the requested one.

    If there is none, `output` gets an empty answer.

    Raises
    ------
    NotFoundError
        The store has no such topic, or the topic no such queue.
    """
    queues = reader.queues()
    of_topic = [key for key in queues if key.topic == topic]
    where = reader.layout.root
    if not of_topic:
        topics = sorted({key.topic for key in queues})
        raise not_found(
            f"{where} has no topic {topic}",
            f"it has {listed(topics)}" if topics else "it has no message yet",
            output,
        )
    if queue_id is None:
        return of_topic
    if QueueKey(topic, queue_id) not in of_topic:
        numbers = [str(key.queue_id) for key in of_topic]
        raise not_found(
            f"topic {topic} of {where} has no queue {queue_id}",
            f"it has {listed(numbers)}",
            output,
        )
    return [QueueKey(topic, queue_id)]


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
