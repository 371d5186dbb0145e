"""``rocketstore message``: read messages by queue, by key, by id."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from rocketstore.cli.options import OutputOption, StoreArgument, StoreSettings
from rocketstore.cli.output import print_rows
from rocketstore.errors import ConfigError, FormatError

app = App(name="message", help="Read messages of a store.")

MESSAGE_COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "size",
    "storeTimestamp",
    "tags",
    "keys",
    "msgId",
)
"""What a table shows of a message; JSON has every field."""


@app.command
def get(
    store: StoreArgument,
    /,
    *,
    topic: str,
    queue: int = 0,
    offset: int = 0,
    max_: Annotated[int, Parameter(name="--max")] = 32,
    tags: str | None = None,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Print messages of one queue from a queue offset on.

    Parameters
    ----------
    store
        Directory of the store.
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
    settings
        Where settings come from.
    output
        How to print.
    """
    from rocketstore.cli.reading import open_for_reading, read_queue

    with open_for_reading(store, settings) as reader:
        rows = (
            message.to_dict() for message in read_queue(reader, topic, queue, offset, max_, tags)
        )
        print_rows(rows, output, columns=MESSAGE_COLUMNS)
    return 0


@app.command
def find(
    store: StoreArgument,
    /,
    *,
    topic: str,
    key: str,
    begin: int = 0,
    end: int | None = None,
    max_: Annotated[int | None, Parameter(name="--max")] = None,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Print messages that carry a key (one of KEYS, or UNIQ_KEY).

    Parameters
    ----------
    store
        Directory of the store.
    topic
        Topic of the messages.
    key
        The key, compared exactly.
    begin, end
        Store time in milliseconds, both inclusive.
    max_
        Most messages to print.
    settings
        Where settings come from.
    output
        How to print.
    """
    from rocketstore.cli.reading import open_for_reading

    with open_for_reading(store, settings) as reader:
        messages = reader.find(topic, key, begin_ms=begin, end_ms=end, max_messages=max_)
        print_rows((message.to_dict() for message in messages), output, columns=MESSAGE_COLUMNS)
    return 0


@app.command(name="id")
def by_id(
    store: StoreArgument,
    message_id: Annotated[str, Parameter(name="ID", help="Message id, 32 or 56 hex characters.")],
    /,
    *,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Print the message that an id names."""
    from rocketstore.cli.reading import open_for_reading
    from rocketstore.format.message_id import decode_message_id

    try:
        decode_message_id(message_id)
    except FormatError as error:
        # What somebody typed is a matter of usage, not damage in a store.
        raise ConfigError(str(error), value=message_id) from error
    with open_for_reading(store, settings) as reader:
        message = reader.by_id(message_id)
    rows = [] if message is None else [message.to_dict()]
    print_rows(rows, output, columns=MESSAGE_COLUMNS)
    return 0
