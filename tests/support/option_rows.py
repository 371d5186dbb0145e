"""The rows that docs/reference/configuration.md must have, from the options themselves."""

import enum

from rocketstore.config.store_config import FIELDS, field_texts

COLUMNS = ("key", "field", "type", "default", "unit", "meaning")


def option_rows() -> list[tuple[str, ...]]:
    """Return the rows of all tables, in the columns of `COLUMNS`."""
    texts = field_texts()
    return [
        (
            f"`{spec.key}`" + (" +" if spec.option.ours else ""),
            f"`{field}`",
            type_text(spec.kind),
            default_text(spec.default),
            spec.option.unit,
            texts[field] + limits_text(spec.option.low, spec.option.high, spec.kind),
        )
        for field, spec in FIELDS.items()
    ]


def type_text(kind: type) -> str:
    if issubclass(kind, enum.Enum):
        return ", ".join(member.value for member in kind)
    return {bool: "boolean", int: "int", float: "number", str: "text"}[kind]


def default_text(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value}`" if isinstance(value, str) else f"{value}"


def limits_text(low: float | None, high: float, kind: type) -> str:
    """Say the limits where they are not simply those of the type."""
    if kind not in (int, float) or low is None:
        return ""
    return f" From {low}." if high >= 2**31 - 1 else f" From {low} to {high}."
