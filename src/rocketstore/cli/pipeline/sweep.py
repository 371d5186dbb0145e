"""``rocketstore pipeline sweep``: what killed jobs left, listed or removed."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rocketstore.cli.findings import EXIT_FINE, EXIT_FOUND
from rocketstore.cli.options import OutputOption
from rocketstore.cli.output import print_rows


def sweep(
    place: Annotated[str, Parameter(name="PLACE", help="A store, a target, or where they lie.")],
    /,
    *,
    remove: Annotated[bool, Parameter(negative=())] = False,
    untouched_hours: float = 24,
    output: OutputOption = "table",
) -> int:
    """List what killed restores, rebuilds, audits, reports and writes left, and remove it if told.

    Exits 0 where nothing is left that no running job holds, 1 where something was.

    Parameters
    ----------
    remove
        Remove what no running job holds.
    untouched_hours
        How long nothing may have changed in what a process of another machine, or an earlier
        release, has made, before nobody is taken to hold it.
    """
    from rocketstore.pipeline.jobs import sweeping

    found = sweeping.sweep(place, remove=remove, untouched_h=untouched_hours)
    print_rows(found, output, columns=("state", "size", "path", "why"))
    return EXIT_FOUND if any(one["state"] != "held" for one in found) else EXIT_FINE
