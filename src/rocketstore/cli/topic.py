"""``rocketstore topic``: the topics of a store."""

from itertools import groupby

from cyclopts import App

from rocketstore.cli.options import DEFAULTS, CommandOptions, StoreArgument
from rocketstore.cli.reading import print_found

app = App(name="topic")


@app.command(name="list")
def list_topics(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> int:
    """Print every topic with its number of queues and of messages that can be read."""
    with options.open(store) as reader:
        queues = {topic: [*keys] for topic, keys in groupby(reader.queues(), lambda key: key.topic)}

        def count(topic: str, _queue_count: int) -> tuple[int]:
            return (sum(reader.message_count(*key) for key in queues[topic]),)

        rows = [(topic, len(keys)) for topic, keys in queues.items()]
        columns = ("topic", "queues", "messages")
        return print_found(reader, rows, count, options.output, columns)
