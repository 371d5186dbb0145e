"""``rocketstore config``: what the settings are and where each comes from."""

from cyclopts import App

from rocketstore.cli.options import DEFAULTS, CommandOptions
from rocketstore.cli.output import print_rows

app = App(name="config")


@app.command
def show(*, origin: bool = False, options: CommandOptions = DEFAULTS) -> None:
    """Print every setting of a store and its value.

    Parameters
    ----------
    origin
        Say where each value comes from: default, broker.conf, environment or flag.
    """
    import msgspec

    loaded = options.load_with_origins()
    values = msgspec.to_builtins(loaded.config)
    print_rows(
        (
            {"key": key, "value": values[key]} | ({"origin": str(source)} if origin else {})
            for key, source in loaded.origins.items()
        ),
        options.output,
        columns=("key", "value", "origin") if origin else ("key", "value"),
    )
