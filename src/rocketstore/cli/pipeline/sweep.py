"""``rocketstore pipeline sweep``: list or remove what killed jobs left behind."""

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
    """List, or remove, what killed restores, rebuilds, audits, reports and writes left.

    Exits 1 if there were leftovers that no running job holds, else 0.

    Parameters
    ----------
    remove
        Remove what no running job holds.
    untouched_hours
        How long the files of a process that is not known here (another machine, an earlier release)
        must be unchanged before they count as left behind.
    """
    from rocketstore.pipeline.jobs import sweeping

    found = sweeping.sweep(place, remove=remove, untouched_h=untouched_hours)
    print_rows(found, output, columns=("state", "size", "path", "why"))
    return EXIT_FOUND if any(one["state"] != "held" for one in found) else EXIT_FINE
