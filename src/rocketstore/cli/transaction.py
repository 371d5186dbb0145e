"""``rocketstore transaction``: transactions of a store."""

from cyclopts import App

from rocketstore.cli.options import DEFAULTS, CommandOptions, StoreArgument
from rocketstore.cli.output import print_rows
from rocketstore.units import system_clock_ms

app = App(name="transaction")


@app.command(name="list")
def list_transactions(store: StoreArgument, /, *, options: CommandOptions = DEFAULTS) -> None:
    """Print the open transactions: age in seconds, and how often their producer was asked.

    The offsets are those to name in a commit or a rollback.
    """
    from rocketstore.format.properties import REAL_QID, REAL_TOPIC
    from rocketstore.rules.half_messages import PRODUCER_GROUP
    from rocketstore.transaction.ledger import open_transactions
    from rocketstore.transaction.records import times_checked

    now_ms = system_clock_ms()
    with options.open(store) as reader:
        rows = (
            {
                "topic": half.properties.get(REAL_TOPIC),
                "queueId": half.properties.get(REAL_QID),
                "producerGroup": half.properties.get(PRODUCER_GROUP),
                "age": max(0, now_ms - half.born_timestamp_ms) // 1000,
                "checks": times_checked(half),
                "halfOffset": half.queue_offset,
                "physicalOffset": half.physical_offset,
                "bornTimestamp": half.born_timestamp_ms,
                "uniqKey": half.unique_key,
            }
            for half in open_transactions(reader)
        )
        columns = (
            "topic", "queueId", "producerGroup", "age", "checks", "halfOffset", "physicalOffset",
            "uniqKey",
        )  # fmt: skip
        print_rows(rows, options.output, columns=columns)
