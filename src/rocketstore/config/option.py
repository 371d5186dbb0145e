"""What one option is: its ``broker.conf`` key, its unit and limits, and the check of a value.

Options are declared as the fields of a struct: a field's name is the snake case of its key, its
annotation holds unit and limits, the text below it says what it does and when to change it.
"""

import enum
import types
from math import inf
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from rocketstore.errors import ConfigError

INT32_MAX: Final = 2**31 - 1

_MISSPELT: Final = {
    "mapped_file_size_batch_queue": "mapperFileSizeBatchConsumeQueue",
    "destroy_mapped_file_interval_forcibly": "destroyMapedFileIntervalForcibly",
    "warm_mapped_file_enable": "warmMapedFileEnable",
    "flush_least_pages_when_warm_mapped_file": "flushLeastPagesWhenWarmMapedFile",
    "check_crc_on_recover": "checkCRCOnRecover",
    "enable_d_ledger_commit_log": "enableDLegerCommitLog",
    "broker_ip1": "brokerIP1",
}
"""Fields whose key is not simply their name in camel case."""


def broker_conf_key(field: str) -> str:
    """Return the ``broker.conf`` key of a field of `StoreConfig`.

    >>> broker_conf_key("flush_disk_type"), broker_conf_key("warm_mapped_file_enable")
    ('flushDiskType', 'warmMapedFileEnable')
    """
    first, *rest = field.split("_")
    return _MISSPELT.get(field) or first + "".join(part.capitalize() for part in rest)


class Option(NamedTuple):
    """Unit and inclusive limits of an option, and whether 4.9's ``broker.conf`` lacks it."""

    unit: str = "-"
    low: float | None = None
    high: float = INT32_MAX
    ours: bool = False


class FieldSpec(NamedTuple):
    """What the parser, the checks and the documentation need to know about a field."""

    key: str
    kind: type
    nullable: bool
    option: Option
    default: Any


def field_specs(options: type[msgspec.Struct]) -> dict[str, FieldSpec]:
    """Return what is known of each field of a struct of options."""
    annotated = get_type_hints(options, include_extras=True)
    specs = {}
    for info in msgspec.structs.fields(options):
        kind, option = annotated[info.name], Option()
        if get_origin(kind) is Annotated:
            kind, option = get_args(kind)
        nullable = isinstance(kind, types.UnionType)
        if nullable:
            kind = get_args(kind)[0]
        specs[info.name] = FieldSpec(info.encode_name, kind, nullable, option, info.default)
    return specs


def check_value(field: str, value: object, spec: FieldSpec) -> None:
    """Raise `ConfigError` where a value is empty, of another type or out of range; says which."""
    if value is None and spec.nullable:
        return
    # bool is an int for Python, and 1 is a fine float, but True is no size.
    if type(value) is not spec.kind and not (spec.kind is float and type(value) is int):
        raise ConfigError(
            f"{spec.key} ({field}) must be {kind_name(spec.kind)}, not {value!r}",
            key=spec.key,
            value=value,
            hint=f"give a {spec.kind.__name__}" if issubclass(spec.kind, enum.Enum) else None,
        )
    if isinstance(value, str) and not value.strip():
        raise ConfigError(
            f"{spec.key} has no value",
            key=spec.key,
            value=value,
            hint="remove it to have its default, or give it a value",
        )
    low, high, unit = spec.option.low, spec.option.high, spec.option.unit
    # "not" also catches NaN.
    if isinstance(value, int | float) and not (-inf if low is None else low) <= value <= high:
        raise ConfigError(
            f"{spec.key}={value} is out of range: {'' if low is None else low} to {high} "
            f"{unit}".rstrip(" -"),
            key=spec.key,
            value=value,
        )


def kind_name(kind: type) -> str:
    """Return how messages call the type of an option."""
    if issubclass(kind, enum.Enum):
        return "one of " + ", ".join(member.value for member in kind)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
