"""How much one batch may be: ``maxOffsetsPerTrigger`` and ``maxBytesPerTrigger``, both at once.

Spark 4.3 hands a source one limit of one kind. Where both options are given, it gets the first and
the other is applied here; a limit of Spark's that says "all" (``Trigger.Once``) switches both off.

Law: a batch holds at least one record where there is one, whatever it weighs: a stream that waits
for a smaller record would wait for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rocketstore.pipeline.streaming.options import StreamOptions


class Limits(NamedTuple):
    """Most records of a batch and most bytes of records; None is no limit.

    Attributes
    ----------
    is_untouched
        Nothing was taken yet, so the first record may weigh what it will.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    is_untouched: bool = True

    @property
    def is_unlimited(self) -> bool:
        """Whether everything may be read."""
        return self.max_rows is None and self.max_bytes is None

    def less(self, rows: int, size_bytes: int) -> Limits:
        """Return what is left when so much was taken."""
        return Limits(
            None if self.max_rows is None else self.max_rows - rows,
            None if self.max_bytes is None else self.max_bytes - size_bytes,
            self.is_untouched and rows == 0,
        )

    @property
    def is_used_up(self) -> bool:
        """Whether nothing more may be taken."""
        return any(one is not None and one <= 0 for one in (self.max_rows, self.max_bytes))

    def share(self, parts: int) -> Limits:
        """Return one of so many equal parts, rounded up."""
        rows, size = self.max_rows, self.max_bytes
        return Limits(
            None if rows is None else -(-rows // parts),
            None if size is None else -(-size // parts),
            self.is_untouched,
        )


UNLIMITED = Limits()


def limits_of(given: Any, options: StreamOptions) -> Limits:
    """Return the limits of a batch.

    Parameters
    ----------
    given
        A ``ReadLimit`` of Spark, recognised by its class's name.
    options
        Of the query.
    """
    kind = type(given).__name__
    if kind == "ReadAllAvailable":
        return UNLIMITED
    rows, size = options.max_offsets, options.max_bytes
    if kind == "ReadMaxRows":
        rows = _smaller(rows, given.max_rows)
    elif kind == "ReadMaxBytes":
        size = _smaller(size, given.max_bytes)
    return Limits(rows, size)


def default_limit(options: StreamOptions) -> Any:
    """Return the limit that Spark is to hand to every batch."""
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - needs PySpark
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
    )

    if options.max_offsets is not None:
        return ReadMaxRows(options.max_offsets)
    if options.max_bytes is not None:
        return ReadMaxBytes(options.max_bytes)
    return ReadAllAvailable()


def _smaller(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
