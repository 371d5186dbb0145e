"""``rocketstore pipeline``: jobs over a whole store, spread over the cores by Spark."""

from __future__ import annotations

from cyclopts import App

app = App(name="pipeline", help="Jobs over whole stores, on Spark: needs rocketstore[pipeline].")
