"""``rocketstore config``: what the settings are and where each comes from."""

from __future__ import annotations

from cyclopts import App

from rocketstore.cli.options import OutputOption, StoreSettings
from rocketstore.cli.output import print_rows

app = App(name="config", help="Settings.")


@app.command
def show(*, settings: StoreSettings | None = None, output: OutputOption = "table") -> int:
    """Print every setting with its value and its origin: default, broker.conf, environment, flag."""
    from rocketstore.config import settings_with_origin

    settings = settings or StoreSettings()
    print_rows(
        settings_with_origin(settings.config, settings.set_),
        output,
        columns=("key", "value", "origin"),
    )
    return 0
