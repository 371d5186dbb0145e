"""``rocketstore message``: read messages by queue, by key, by id; follow a topic."""

from __future__ import annotations

import itertools
import select
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from rocketstore.cli import exit_codes
from rocketstore.cli.options import (
    DEFAULTS,
    BeginOption,
    BodyOption,
    CommandOptions,
    EndOption,
    MaxOption,
    OutputOption,
    QueueOption,
    StoreArgument,
    StoreSettings,
    TopicOption,
)
from rocketstore.cli.output import (
    cell_text,
    fit,
    json_text,
    print_object,
    print_rows,
    terminal_width,
)
from rocketstore.cli.reading import not_found, queues_of, say_shown
from rocketstore.cli.wording import complain
from rocketstore.errors import ConfigError, FormatError
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.cli.options import Output
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.storage.read_only import ReadOnlyStore

app = App(name="message")


MESSAGE_COLUMNS = ("queueOffset", "storeTimestamp", "tags", "keys", "body")
"""What a table shows of a message of a known queue; JSON has every field."""

_MOST_COUNTED = 10_000
"""Messages of a key that are counted to say how many there are."""

POLL_INTERVAL_S: Final = 0.1
_TURNS_PER_LISTING: Final = 5
"""Looks at the queues between two listings of their directory, which may have thousands."""

_LONGEST_BODY: Final = 4096
"""Characters of a body that a line shows where no terminal says less."""


@app.command
def get(
    store: StoreArgument,
    /,
    *,
    topic: TopicOption,
    queue: QueueOption = 0,
    offset: int = 0,
    begin: BeginOption = None,
    end: EndOption = None,
    max_: Annotated[int, MaxOption] = 32,
    tags: str | None = None,
    body: BodyOption = None,
    options: CommandOptions = DEFAULTS,
) -> None:
    """Print messages of one queue, from a queue offset or a time on.

    Parameters
    ----------
    offset
        Queue offset to begin with.
    max_
        Most messages to print.
    tags
        Tag expression, for example ``created || paid``.
    """
    from rocketstore.cli.bodies import show_body
    from rocketstore.storage.reading.reader import messages_of

    with options.open(store) as reader:
        queues_of(reader, topic, queue, options.output)
        start = max(offset, reader.min_offset(topic, queue))
        stop = reader.max_offset(topic, queue)
        if begin is not None:
            start = max(start, reader.offset_at(topic, queue, begin))
        if end is not None:
            stop = min(stop, reader.offset_at(topic, queue, end))
        last = start - 1

        def messages() -> Iterator[StoredMessage]:
            nonlocal last
            found = messages_of(reader, QueueKey(topic, queue), start, tags)
            for message in itertools.islice(found, max_):
                if message.queue_offset >= stop:
                    break
                last = message.queue_offset
                yield message

        rows = (show_body(message.to_dict(), body, options.output) for message in messages())
        count = print_rows(rows, options.output, columns=MESSAGE_COLUMNS)
    if count == max_:
        left = max(stop - last - 1, 0)
        if tags is None:
            say_shown(count, count + left)
        elif left:
            say_shown(count, f"at most {count + left}")
    elif start >= stop:
        _say_nothing_there(f"queue {topic}/{queue}", start, stop, end)


def _say_nothing_there(queue: str, start: int, stop: int, end: int | None) -> None:
    why = f"ends at queue offset {stop}"
    if end is not None:
        why = f"has no message from queue offset {start} on that was stored before --end"
    complain(f"nothing there: {queue} {why}")


@app.command
def find(
    store: StoreArgument,
    /,
    *,
    topic: TopicOption,
    key: Annotated[str, Parameter(name=["--key", "-k"])],
    begin: BeginOption = None,
    end: EndOption = None,
    max_: Annotated[int | None, MaxOption] = None,
    body: BodyOption = None,
    options: CommandOptions = DEFAULTS,
) -> None:
    """Print messages that carry a key (one of KEYS, or UNIQ_KEY), newest first.

    Parameters
    ----------
    key
        The key, compared exactly.
    max_
        Most messages to print; unset: 64, the setting maxMsgsNumBatch.
    """
    from rocketstore.cli.bodies import show_body

    with options.open(store) as reader:
        queues_of(reader, topic, None, options.output)
        limit = reader.config.max_msgs_num_batch if max_ is None else max_

        def found(most: int) -> list[StoredMessage]:
            # The store's own ranges include their end.
            last = None if end is None else end - 1
            return reader.find(topic, key, begin_ms=begin or 0, end_ms=last, max_messages=most)

        messages = found(limit)
        rows = (show_body(message.to_dict(), body, options.output) for message in messages)
        print_rows(rows, options.output, columns=("queueId", *MESSAGE_COLUMNS))
        if not messages:
            complain(f"no message of {topic} carries the key {key}")
        elif len(messages) == limit:
            total = len(found(limit + _MOST_COUNTED))
            is_all = total < limit + _MOST_COUNTED
            say_shown(limit, total if is_all else f"more than {total - 1}")


@app.command(name="id")
def by_id(
    store: StoreArgument,
    message_id: Annotated[str, Parameter(name="ID", help="Message id, 32 or 56 hex characters.")],
    /,
    *,
    body: BodyOption = None,
    options: CommandOptions = DEFAULTS,
) -> None:
    """Print the message that an id names, with all its fields."""
    from rocketstore.cli.bodies import show_body
    from rocketstore.format.host import decode_message_id

    message_id = "".join(message_id.split())  # pasted from a table, or broken over lines
    hint = (
        "an id that a client made (UNIQ_KEY) is a key: rocketstore message find STORE "
        f"--topic TOPIC --key {message_id}"
    )
    try:
        decode_message_id(message_id)
    except FormatError as error:
        # A mistyped id is an error of usage, not damage in a store.
        raise ConfigError(str(error), value=message_id, hint=hint) from error
    with options.open(store) as reader:
        message = reader.by_id(message_id)
    if message is None:
        raise not_found(f"{store} has no message {message_id}", hint, options.output)
    row = show_body(message.to_dict(), body, options.output)
    if options.output == "table":
        print_object(row, options.output)
    else:
        print_rows([row], options.output, columns=())


@app.command
def tail(
    store: StoreArgument,
    /,
    *,
    topic: TopicOption,
    queue: Annotated[int | None, Parameter(name=["--queue", "-q"])] = None,
    max_: Annotated[int, MaxOption] = 10,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative=())] = False,
    tags: str | None = None,
    body: BodyOption = None,
    settings: StoreSettings = DEFAULTS,
    output: OutputOption = "table",
) -> int:
    """Print the last messages of a topic, and with --follow each new one as it comes.

    A broker may be writing to the store. A line of the table: store time, queue id and offset,
    tags, keys, body. With --follow the output is a table or jsonl.

    Parameters
    ----------
    queue
        Only this queue.
    max_
        How many of the last messages to print.
    follow
        Go on until Ctrl-C, or until nobody reads what is printed.
    tags
        Tag expression, for example ``created || paid``.
    """
    from rocketstore.cli.bodies import show_body

    if follow and output == "json":
        raise ConfigError("--follow never comes to the end of a JSON array", hint="-o jsonl")
    with settings.open(store) as reader:
        queues_of(reader, topic, queue, output)
        messages, ends = last_messages(reader, topic, queue, max_, tags)
        if not follow and output == "json":
            print_rows(
                [show_body(one.to_dict(), body, output) for one in messages], output, columns=()
            )
            return 0
        try:
            more = new_messages(reader, topic, queue, ends, tags) if follow else iter(())
            for message in itertools.chain(messages, more):
                print_line(show_body(message.to_dict(), body, output), output)
        except KeyboardInterrupt:  # the way to end it
            return exit_codes.INTERRUPTED
    return 0


def last_messages(
    reader: ReadOnlyStore, topic: str, queue_id: int | None, count: int, tags: str | None
) -> tuple[list[StoredMessage], dict[int, int]]:
    """Return the last messages by store time, and the offset at which each queue continues.

    With `tags` those of the last `count` messages of each queue that match.
    """
    from rocketstore.storage.reading.reader import messages_of

    messages: list[StoredMessage] = []
    ends: dict[int, int] = {}
    for key in _queue_ids(reader, topic, queue_id):
        end = ends[key] = reader.max_offset(topic, key)
        start = max(end - count, reader.min_offset(topic, key))
        found = itertools.islice(messages_of(reader, QueueKey(topic, key), start, tags), count)
        messages += [message for message in found if message.queue_offset < end]
    messages.sort(key=lambda one: (one.store_timestamp_ms, one.physical_offset))
    return messages[max(len(messages) - count, 0) :], ends


def new_messages(
    reader: ReadOnlyStore, topic: str, queue_id: int | None, ends: dict[int, int], tags: str | None
) -> Iterator[StoredMessage]:
    """Yield messages as they come, for ever; queues that are new too."""
    for turn in itertools.count():
        is_idle = True
        if turn % _TURNS_PER_LISTING == 0:
            queue_ids = _queue_ids(reader, topic, queue_id)
        for key in queue_ids:
            offset = ends.get(key, 0)
            page = reader.get(topic, key, offset, 32, tags)
            yield from page.messages
            ends[key] = page.next_offset
            is_idle &= page.next_offset == offset
        _wait_for_more(POLL_INTERVAL_S if is_idle else 0)


def _wait_for_more(seconds: float) -> None:
    """Wait; raise where the reader of the output has left, which no write may tell for long."""
    output = select.poll()
    output.register(1, 0)
    if output.poll(seconds * 1000):
        raise BrokenPipeError


def print_line(row: dict[str, Any], output: Output) -> None:
    """Print one message at once, as a line."""
    if output != "table":
        print(json_text(row), flush=True)
        return
    row["body"] = row["body"][:_LONGEST_BODY]
    names = ("storeTimestamp", "queueId", "queueOffset", "tags", "keys", "body")
    at, queue, offset, tags, keys, body = (cell_text(name, row[name]) for name in names)
    line = f"{at} {queue}/{offset} {tags} {keys} {body}".rstrip()
    width = terminal_width()
    print(line if width is None else fit(line, width), flush=True)


def _queue_ids(reader: ReadOnlyStore, topic: str, queue_id: int | None) -> list[int]:
    if queue_id is not None:
        return [queue_id]
    return [key.queue_id for key in reader.queues(topic)]
