"""``rocketstore message``: read messages by queue, by key, by id; follow a topic."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from rocketstore.cli.options import (
    BeginOption,
    BodyOption,
    EndOption,
    MaxOption,
    OutputOption,
    QueueOption,
    StoreArgument,
    StoreSettings,
    TopicOption,
)
from rocketstore.cli.output import print_object, print_rows
from rocketstore.cli.wording import complain
from rocketstore.errors import ConfigError, FormatError
from rocketstore.units import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketstore.format.stored_message import StoredMessage

app = App(name="message", help="Read messages of a store.")

EXIT_INTERRUPTED = 130

MESSAGE_COLUMNS = ("queueOffset", "storeTimestamp", "tags", "keys", "body")
"""What a table shows of a message of a known queue; JSON has every field."""

_MOST_COUNTED = 10_000
"""Messages of a key that are counted to say how many there are."""


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
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> None:
    """Print messages of one queue, from a queue offset or a time on.

    Parameters
    ----------
    topic
        Topic to read.
    queue
        Queue id.
    offset
        Queue offset to begin with.
    max_
        Most messages to print.
    tags
        Tag expression, for example ``created || paid``.
    """
    from rocketstore.cli.bodies import show_body
    from rocketstore.cli.reading import open_for_reading, queues_of, say_shown
    from rocketstore.storage.reading.reader import messages_of

    with open_for_reading(store, settings) as reader:
        queues_of(reader, topic, queue, output)
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

        rows = (show_body(message.to_dict(), body, output) for message in messages())
        count = print_rows(rows, output, columns=MESSAGE_COLUMNS)
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
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> None:
    """Print messages that carry a key (one of KEYS, or UNIQ_KEY), newest first.

    Parameters
    ----------
    topic
        Topic of the messages.
    key
        The key, compared exactly.
    max_
        Most messages to print; unset: 64, the setting maxMsgsNumBatch.
    """
    from rocketstore.cli.bodies import show_body
    from rocketstore.cli.reading import open_for_reading, queues_of, say_shown

    with open_for_reading(store, settings) as reader:
        queues_of(reader, topic, None, output)
        limit = reader.config.max_msgs_num_batch if max_ is None else max_

        def found(most: int) -> list[StoredMessage]:
            # The store's own ranges include their end.
            last = None if end is None else end - 1
            return reader.find(topic, key, begin_ms=begin or 0, end_ms=last, max_messages=most)

        messages = found(limit)
        rows = (show_body(message.to_dict(), body, output) for message in messages)
        print_rows(rows, output, columns=("queueId", *MESSAGE_COLUMNS))
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
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> None:
    """Print the message that an id names, with all its fields."""
    from rocketstore.cli.bodies import show_body
    from rocketstore.cli.reading import not_found, open_for_reading
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
    with open_for_reading(store, settings) as reader:
        message = reader.by_id(message_id)
    if message is None:
        raise not_found(f"{store} has no message {message_id}", hint, output)
    row = show_body(message.to_dict(), body, output)
    if output == "table":
        print_object(row, output)
    else:
        print_rows([row], output, columns=())


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
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Print the last messages of a topic, and with --follow each new one as it comes.

    A line of the table: store time, queue id and offset, tags, keys, body.

    Parameters
    ----------
    store
        Directory of the store, which a broker may be writing to.
    topic
        Topic to read.
    queue
        Only this queue.
    max_
        How many of the last messages to print.
    follow
        Go on until Ctrl-C.
    tags
        Tag expression, for example ``created || paid``.
    output
        How to print; with --follow table or jsonl.
    """
    from rocketstore.cli.bodies import show_body
    from rocketstore.cli.following import last_messages, new_messages, print_line
    from rocketstore.cli.reading import open_for_reading, queues_of

    if follow and output == "json":
        raise ConfigError("--follow never comes to the end of a JSON array", hint="-o jsonl")
    with open_for_reading(store, settings) as reader:
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
            return EXIT_INTERRUPTED
    return 0
