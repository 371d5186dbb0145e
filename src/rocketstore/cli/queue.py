"""``rocketstore queue``: the ConsumeQueues of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from rocketstore.cli.options import (
    DEFAULTS,
    CommandOptions,
    MaxOption,
    QueueOption,
    StoreArgument,
    TopicOption,
)
from rocketstore.cli.output import print_rows
from rocketstore.cli.reading import listed, not_found, print_found, queues_of, say_shown
from rocketstore.cli.wording import complain

if TYPE_CHECKING:
    from rocketstore.storage.read_only import ReadOnlyStore

app = App(name="queue")


@app.command(name="list")
def list_queues(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> int:
    """Print every queue with its minimum and maximum offset, or why it cannot be read."""
    with options.open(store) as reader:

        def ends(*key: Any) -> tuple[int, int]:
            return reader.min_offset(*key), reader.max_offset(*key)

        columns = ("topic", "queueId", "minOffset", "maxOffset")
        return print_found(reader, reader.queues(), ends, options.output, columns)


@app.command
def show(
    store: StoreArgument,
    /,
    *,
    topic: TopicOption,
    queue: QueueOption = 0,
    offset: int | None = None,
    max_: Annotated[int | None, MaxOption] = None,
    options: CommandOptions = DEFAULTS,
) -> None:
    """Print the entries of one queue as they are stored, fillers included.

    In a store with queue extensions also what an entry refers to there.

    Parameters
    ----------
    offset
        First queue offset; without it the first entry on disk, below the minimum offset too.
    max_
        Most entries; without it all.
    """
    with options.open(store) as reader:
        queues_of(reader, topic, queue, options.output)
        is_extended = reader.layout.consume_queue_ext.is_dir()
        rows = (
            {
                "queueOffset": queue_offset,
                "physicalOffset": entry.physical_offset,
                "size": entry.record_size,
                "tagsCode": entry.tags_code,
                **(_extension(reader, topic, queue, entry.tags_code) if is_extended else {}),
            }
            for queue_offset, entry in reader.queue_entries(topic, queue, offset, max_)
        )
        columns = ["queueOffset", "physicalOffset", "size", "tagsCode"]
        if is_extended:
            columns += ["extTagsCode", "extStoreTimestamp", "extBitMap"]
        count = print_rows(rows, options.output, columns=columns)
        if count == max_:
            first = next(iter(reader.queue_entries(topic, queue, offset, 1)), (0,))[0]
            say_shown(count, reader.max_offset(topic, queue) - first)


def _extension(reader: ReadOnlyStore, topic: str, queue: int, tags_code: int) -> dict[str, Any]:
    """Return what the queue's extension has of an entry, null where the entry refers to none."""
    unit = reader.extension_unit(topic, queue, tags_code)
    return {
        "extTagsCode": unit and unit.tags_code,
        "extStoreTimestamp": unit and unit.store_timestamp_ms,
        "extBitMap": unit and unit.bit_map.hex(),
    }


@app.command
def lag(
    store: StoreArgument,
    /,
    *,
    group: Annotated[str | None, Parameter(name=["--group", "-g"])] = None,
    topic: Annotated[str | None, Parameter(name=["--topic", "-t"])] = None,
    options: CommandOptions = DEFAULTS,
) -> int:
    """Print how far each consumer group is behind the end of each queue that it consumes.

    Negative for a group that is ahead of a queue which lost messages; none where an offset is below
    0, which is no place in a queue.

    Parameters
    ----------
    group
        Only this consumer group.
    topic
        Only this topic.
    """
    from rocketstore.tables.consumer_offsets import read_offsets

    with options.open(store) as reader:
        # The offsets first: later messages count as lag, and put no group ahead of its queue.
        places = list(read_offsets(reader.layout).rows())
        groups = sorted({name for name, _, _ in places})
        topics = sorted({key.topic for name, key, _ in places if group in (None, name)})
        for kind, wanted, known in (("group", group, groups), ("topic", topic, topics)):
            if wanted is not None and wanted not in known:
                what = f"{store} has no offsets of a {kind} {wanted}"
                hint = f"it has those of: {listed(known) or 'none yet'}"
                raise not_found(what, hint, options.output)

        def behind(_group: str, topic: str, queue_id: int, offset: int) -> tuple[int, int | None]:
            end = reader.max_offset(topic, queue_id)
            return end, None if offset < 0 else end - offset

        rows = [
            (name, *key, offset)
            for name, key, offset in places
            if group in (None, name) and topic in (None, key.topic)
        ]
        columns = ("group", "topic", "queueId", "offset", "maxOffset", "lag")
        code = print_found(reader, rows, behind, options.output, columns, topic)
    if count := sum(offset < 0 for *_, offset in rows):
        complain(f"offsets below 0: {count}; a group begins there as one without an offset")
    return code


@app.command
def rebuild(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> int:
    """Make the queues again from the CommitLog of a store that no process writes.

    The old queues are kept in repair/ inside the store; other faults are repaired too.
    """
    from rocketstore.audit.repair import rebuild_store
    from rocketstore.cli.findings import print_repair

    report = rebuild_store(store, options.load(store), what="queues")
    return print_repair(report, options.output)
