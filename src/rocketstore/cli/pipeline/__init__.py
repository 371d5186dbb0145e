"""``rocketstore pipeline``: jobs over a whole store, spread over the cores by Spark.

One module per job; each calls the function of its name in ``rocketstore.pipeline``.
"""

from __future__ import annotations

from cyclopts import App

from rocketstore.cli.pipeline.archive import archive
from rocketstore.cli.pipeline.audit import audit
from rocketstore.cli.pipeline.rebuild import rebuild
from rocketstore.cli.pipeline.report import report
from rocketstore.cli.pipeline.restore import restore
from rocketstore.cli.pipeline.sweep import sweep

app = App(
    name="pipeline",
    help="Jobs over whole stores, on Spark: needs rocketstore[pipeline]. With --traceback each "
    "shows what led to an error.",
)
app.command(archive)
app.command(audit)
app.command(rebuild)
app.command(report)
app.command(restore)
app.command(sweep)
