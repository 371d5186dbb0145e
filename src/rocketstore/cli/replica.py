"""``rocketstore replica``: how far slaves are."""

from __future__ import annotations

from cyclopts import App

from rocketstore.cli.options import OutputOption, StoreArgument, StoreSettings
from rocketstore.cli.output import print_rows
from rocketstore.cli.serve import MasterOption

app = App(name="replica", help="How far a slave is.")


@app.command
def status(
    store: StoreArgument,
    /,
    *,
    master: MasterOption = None,
    settings: StoreSettings | None = None,
    output: OutputOption = "table",
) -> int:
    """Print where this log ends, where its master's does, and what is missing here.

    The master has to be one of rocketstore; one of 4.9 does not say where its log ends. What slaves
    it has, and up to where the furthest of them acknowledged, is what it says of all of them.

    Parameters
    ----------
    store
        Directory of the slave's store.
    master
        Address at which the master listens for slaves.
    settings
        See `config show`.
    output
        table, json or jsonl.
    """
    import msgspec

    from rocketstore.cli.reading import open_for_reading
    from rocketstore.errors import ConfigError
    from rocketstore.replication.slave import ask_master

    config = (settings or StoreSettings()).load(store)
    if master is not None:
        config = msgspec.structs.replace(config, ha_master_address=master)
    if config.ha_master_address is None:
        raise ConfigError("whose slave is it?", key="haMasterAddress", hint="give --master")
    with open_for_reading(store, settings) as reader:
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
    print_rows([row], output, columns=tuple(row))
    return 0
