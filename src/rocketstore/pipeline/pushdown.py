"""Filters that Spark offers to a source, as far as this one can use them.

Law: a filter is used to read and to send less, and is always handed back: Spark applies it again,
so a query is right whether a filter was used or not.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXT_COLUMNS: Final = frozenset({"topic", "tags", "brokerName"})
NUMBER_COLUMNS: Final = frozenset(
    {
        *("flag", "queueId", "queueOffset", "physicalOffset", "size", "sysFlag"),
        *("reconsumeTimes", "preparedTransactionOffset", "bodyCRC"),
    }
)
TIME_COLUMNS: Final = frozenset({"bornTimestamp", "storeTimestamp"})

_OPERATORS: Final = {
    "EqualTo": "=",
    "In": "in",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Comparison(NamedTuple):
    """A column compared with constants.

    Attributes
    ----------
    operator
        ``= in < <= > >=``.
    values
        Texts, numbers, or times in microseconds; one unless the operator is ``in``.
    """

    column: str
    operator: str
    values: tuple[Any, ...]


def comparisons_of(filters: Iterable[Any]) -> tuple[Comparison, ...]:
    """Return the comparisons among the filters that Spark offers; others are left to Spark."""
    found = (_comparison(one) for one in filters)
    return tuple(one for one in found if one is not None)


def _comparison(offered: Any) -> Comparison | None:
    operator = _OPERATORS.get(type(offered).__name__)
    column = ".".join(getattr(offered, "attribute", ()))
    if operator is None or column not in TEXT_COLUMNS | NUMBER_COLUMNS | TIME_COLUMNS:
        return None
    if column in TEXT_COLUMNS and operator not in ("=", "in"):
        return None
    given = offered.value if operator == "in" else (offered.value,)
    values = tuple(_constant(column, value) for value in given if value is not None)
    if any(value is None for value in values) or (not values and operator != "in"):
        return None
    return Comparison(column, operator, values)


def _constant(column: str, value: Any) -> Any:
    """Return a constant in the form that columns are compared in; None for a foreign type."""
    if column in TIME_COLUMNS:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return (value - _EPOCH) // timedelta(microseconds=1)
    wanted = str if column in TEXT_COLUMNS else int
    return value if isinstance(value, wanted) else None


def bounds_of(comparisons: Iterable[Comparison], column: str) -> tuple[int | None, int | None]:
    """Return the least and the greatest value of a column that pass; None for no such bound."""
    low: int | None = None
    high: int | None = None
    for one in comparisons:
        if one.column != column or not one.values:
            continue
        if one.operator in ("=", "in", ">", ">="):
            least = min(one.values)
            low = least if low is None else max(low, least)
        if one.operator in ("=", "in", "<", "<="):
            greatest = max(one.values)
            high = greatest if high is None else min(high, greatest)
    return low, high
