"""``rocketstore replica``: how far behind slaves are."""

from cyclopts import App

from rocketstore.cli.options import DEFAULTS, CommandOptions, StoreArgument
from rocketstore.cli.output import print_rows
from rocketstore.cli.replication import MasterOption, with_master

app = App(name="replica")


@app.command
def status(
    store: StoreArgument, /, *, master: MasterOption = None, options: CommandOptions = DEFAULTS
) -> None:
    """Print the ends of this log and its master's, and how much is missing here.

    The master has to be one of rocketstore; one of 4.9 does not say where its log ends. The number
    of slaves, and how far the furthest of them acknowledged, are the master's for all of them.
    """
    from rocketstore.replication.slave import ask_master

    config = with_master(options.load(store), master)
    with options.open(store) as reader:
        begin, end = reader.min_physical_offset, reader.max_physical_offset
    there = ask_master(config)
    row = {
        "minOffset": begin,
        "maxOffset": end,
        "masterMinOffset": there.begin,
        "masterMaxOffset": there.end,
        "behindBytes": there.end - end,
        "slaves": there.slave_count,
        "acknowledgedOffset": there.acknowledged,
    }
    print_rows([row], options.output, columns=tuple(row))
