"""``rocketstore topic``: the topics of a store."""

from collections import Counter

from cyclopts import App

from rocketstore.cli.options import DEFAULTS, CommandOptions, StoreArgument
from rocketstore.cli.output import print_rows
from rocketstore.cli.reading import say_cut_short

app = App(name="topic")


@app.command(name="list")
def list_topics(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> None:
    """Print every topic with its number of queues and of messages that can be read."""
    with options.open(store) as reader:
        queues, messages = Counter[str](), Counter[str]()
        for key in reader.queues():
            queues[key.topic] += 1
            messages[key.topic] += reader.message_count(key.topic, key.queue_id)
        rows = (
            {"topic": topic, "queues": queues[topic], "messages": messages[topic]}
            for topic in sorted(queues)
        )
        print_rows(rows, options.output, columns=("topic", "queues", "messages"))
        say_cut_short(reader)
