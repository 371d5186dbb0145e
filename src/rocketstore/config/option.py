"""What is known about one option: its meaning, unit, limits and effect.

The facts stand in the annotation of each field of `StoreConfig`, so that the documentation, the
range checks, ``config show`` and the parser of ``broker.conf`` read one and the same table.
"""

from __future__ import annotations

import enum
import textwrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocketstore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

INT32_MAX: Final = 2**31 - 1

_WRAPPER: Final = textwrap.TextWrapper(90, initial_indent="    ", subsequent_indent="    ")


class Group(enum.Enum):
    """What an option changes; the order is that of the documentation."""

    PLACE = "where files lie"
    SIZE = "sizes of files"
    LIMIT = "limits"
    DURABILITY = "durability"
    PERFORMANCE = "performance"
    READING = "reading"
    INDEX = "index"
    RECOVERY = "recovery"
    RETENTION = "retention"
    QUEUES = "delays, further queues and roles"


class Option(NamedTuple):
    """Facts about one option.

    Attributes
    ----------
    group
        Section of the documentation.
    doc
        What it is, and when to change it.
    unit
        ``ms``, ``bytes``, ``%``, ``hours``, ``count``, … or ``-``.
    low, high
        Inclusive limits of a number, None for none.
    ours
        True where 4.9's ``broker.conf`` does not know the key.
    """

    group: Group
    doc: str
    unit: str = "-"
    low: float | None = None
    high: float | None = INT32_MAX
    ours: bool = False


_MISSPELT: Final = {
    "destroy_mapped_file_interval_forcibly": "destroyMapedFileIntervalForcibly",
    "warm_mapped_file_enable": "warmMapedFileEnable",
    "flush_least_pages_when_warm_mapped_file": "flushLeastPagesWhenWarmMapedFile",
    "check_crc_on_recover": "checkCRCOnRecover",
    "enable_d_ledger_commit_log": "enableDLegerCommitLog",
}
"""Fields whose key is not simply their name in camel case."""


def broker_conf_key(field: str) -> str:
    """Return the ``broker.conf`` key of a field of `StoreConfig`.

    Examples
    --------
    >>> broker_conf_key("flush_disk_type"), broker_conf_key("warm_mapped_file_enable")
    ('flushDiskType', 'warmMapedFileEnable')
    """
    if field in _MISSPELT:
        return _MISSPELT[field]
    first, *rest = field.split("_")
    return first + "".join(part.capitalize() for part in rest)


class FlushDiskType(enum.Enum):
    """When a put is acknowledged."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.Enum):
    """The store's part in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class RecoveryPolicy(enum.Enum):
    """What an open after a crash keeps."""

    SALVAGE = "salvage"
    COMPATIBLE = "compatible"


class FieldSpec(NamedTuple):
    """What the parser and the checks need to know about a field."""

    key: str
    kind: type
    nullable: bool
    option: Option
    default: Any


def check_value(field: str, value: object, spec: FieldSpec) -> None:
    """Check one value of `StoreConfig`.

    Raises
    ------
    ConfigError
        Its type or range is wrong; says key, value and limit.
    """
    if value is None and spec.nullable:
        return
    # bool is an int for Python, and 1 is a fine float, but True is no size.
    right = type(value) is spec.kind or (spec.kind is float and type(value) is int)
    if not right:
        raise ConfigError(
            f"{spec.key} ({field}) must be {kind_name(spec.kind)}, not {value!r}",
            key=spec.key,
            value=value,
            hint=f"give a {spec.kind.__name__}" if issubclass(spec.kind, enum.Enum) else None,
        )
    low, high = spec.option.low, spec.option.high
    if spec.kind in (int, float) and isinstance(value, int | float):
        # "not >=" also catches NaN.
        too_low = low is not None and not value >= low
        too_high = high is not None and not value <= high
        if too_low or too_high:
            limits = f"{'' if low is None else low} to {high}"
            raise ConfigError(
                f"{spec.key}={value} is out of range: {limits} {spec.option.unit}".rstrip(" -"),
                key=spec.key,
                value=value,
            )


def kind_name(kind: type) -> str:
    """Return how messages call the type of an option."""
    if issubclass(kind, enum.Enum):
        return "one of " + ", ".join(member.value for member in kind)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


def parameters_help(fields: Mapping[str, FieldSpec]) -> str:
    """Return the section ``Parameters`` of a docstring: each field with type, default and text."""
    lines = ["Parameters", "----------"]
    for field, spec in fields.items():
        default = spec.default.name if isinstance(spec.default, enum.Enum) else spec.default
        kind = spec.kind.__name__ + (" | None" if spec.nullable else "")
        lines += [f"{field}: {kind} = {default}", *_WRAPPER.wrap(spec.option.doc)]
    return "\n".join(f"    {line}" for line in lines)
