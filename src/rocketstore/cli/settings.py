"""``rocketstore config``: what the settings are and where each comes from."""

from __future__ import annotations

import msgspec
from cyclopts import App

from rocketstore.cli.options import OutputOption, StoreSettings
from rocketstore.cli.output import print_rows

app = App(name="config", help="Settings.")


@app.command
def show(*, settings: StoreSettings | None = None, output: OutputOption = "table") -> int:
    """Print every setting, its value, and where that comes from."""
    loaded = (settings or StoreSettings()).load_with_origins()
    values = msgspec.to_builtins(loaded.config)
    print_rows(
        (
            {"key": key, "value": values[key], "origin": str(origin)}
            for key, origin in loaded.origins.items()
        ),
        output,
        columns=("key", "value", "origin"),
    )
    return 0
