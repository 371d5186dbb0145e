"""Where options come from: default < ``broker.conf`` < environment < ``--set``.

Law: nothing is dropped in silence. 4.9 ignores a misspelt key and a number that is not one; here
both are a `ConfigError` that names the key, the value and the nearest known key. A key of a
``broker.conf`` that resembles no option of the store is another part's, of this or another version
of RocketMQ, and is ignored with a warning.
Source: rocketmq-all-4.9.8, BrokerStartup and MixAll.properties2Object.
"""

from __future__ import annotations

import contextlib
import difflib
import enum
import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import javaproperties

from rocketstore.config.known_keys import (
    BROKER_ADDRESS_KEY,
    BROKER_KEYS,
    DEFAULT_LISTEN_PORT,
    KEYS_OF_5,
    KEYS_WITHOUT_EFFECT,
    LISTEN_PORT_KEY,
)
from rocketstore.config.store_config import (
    FIELD_OF_KEY,
    FIELDS,
    FieldSpec,
    StoreConfig,
    kind_name,
)
from rocketstore.config.values import join_host
from rocketstore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENVIRONMENT_PREFIX: Final = "ROCKETSTORE_"
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,19}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_MISSPELT_RATIO: Final = 0.85
"""So alike (difflib, 0 to 1) a key of a ``broker.conf`` and an option are one, misspelt: no key of
RocketMQ 5's own comes as near, but for one that is listed."""
_SIMILAR_RATIO: Final = 0.5
"""So alike they are worth asking "did you mean"."""
_STORE_HOST_KEY: Final = "storeHost"
_RETENTION_KEY: Final = "retention"
_ADDRESS_KEYS: Final = frozenset({BROKER_ADDRESS_KEY, LISTEN_PORT_KEY})
"""Keys of the broker that tell the store's host."""
_IDLE_KEYS: Final = BROKER_KEYS | KEYS_WITHOUT_EFFECT


class Origin(NamedTuple):
    """Where a value comes from.

    `kind` is ``default``, ``file``, ``environment`` or ``flag``; `detail` the path of the file, the
    name of the variable or of the flag.
    """

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()


class LoadedConfig(NamedTuple):
    """A configuration with the origin of each of its values."""

    config: StoreConfig
    origins: dict[str, Origin]
    """By ``broker.conf`` key, every option included, in the order of `StoreConfig`."""
    warnings: tuple[str, ...]
    """What was ignored and may not have been meant so."""


def load_broker_conf(path: str | os.PathLike[str]) -> dict[str, str]:
    r"""Read a Java properties file; a later duplicate wins.

    Raises
    ------
    ConfigError
        It cannot be read, or holds a malformed ``\u`` escape.
    """
    try:
        # Bytes are Latin-1, as for java.util.Properties.load(InputStream).
        with open(path, "rb") as file:  # noqa: PTH123 - any path-like
            loaded: dict[str, str] = javaproperties.load(file)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot read {os.fspath(path)}: {reason}") from error
    except ValueError as error:
        raise ConfigError(f"{os.fspath(path)} is no Java properties file: {error}") from error
    return loaded


def from_properties(properties: Mapping[str, str], *, strict: bool = True) -> StoreConfig:
    """Build a configuration from ``broker.conf`` keys and texts.

    Parameters
    ----------
    properties
        Keys as in ``broker.conf``. Those of other parts of a 4.9 broker are ignored.
    strict
        Whether a key that looks like a misspelt option is an error; else it is ignored too.

    Raises
    ------
    ConfigError
        A misspelt key (names the nearest known one), a text that is no value of its option, or a
        value outside its limits.
    """
    values: dict[str, Any] = {}
    for key, text in with_store_host(properties).items():
        field = FIELD_OF_KEY.get(key)
        if field is None:
            _note_unknown(key, text, strict=strict)
        else:
            values[field] = parse_value(text, FIELDS[field])
    return StoreConfig(**values)


def apply_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Split ``key=value`` texts (``--set``) into a mapping; a later duplicate wins.

    Raises
    ------
    ConfigError
        A text has no ``=``, or its key is no option of the store.
    """
    values = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        key = key.strip()
        if not (separator and key):
            raise ConfigError(
                f"--set {override}: not of the form key=value",
                value=override,
                hint="for example --set flushDiskType=SYNC_FLUSH",
            )
        # Unlike broker.conf, a flag is meant for the store: a broker's key would do nothing.
        if key not in FIELD_OF_KEY:
            raise _unknown_key(key, text)
        values[key] = text.strip()
    return values


def load_config(
    *,
    broker_conf: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
) -> LoadedConfig:
    """Merge all sources and remember where each value comes from.

    Parameters
    ----------
    broker_conf
        A Java properties file (``--config``). It turns retention on, as in the broker it is of,
        unless it, or what comes after it, says ``retention=false``.
    environment
        Variables; None takes those of the process.
    overrides
        Texts ``key=value`` (``--set``).

    Raises
    ------
    ConfigError
        See `from_properties`.
    """
    origins = {spec.key: Origin("default") for spec in FIELDS.values()}
    texts: dict[str, str] = {}
    own, foreign = [], {}
    for override in overrides:
        key, separator, text = (part.strip() for part in override.partition("="))
        if separator and key in _IDLE_KEYS:
            foreign[key] = text
        else:  # the store's, or what may be meant so
            own.append(override)
    address = {key: foreign[key] for key in foreign.keys() & _ADDRESS_KEYS}
    warnings = [f"--set {key}: {_why_idle(key)}" for key in sorted(foreign.keys() - _ADDRESS_KEYS)]
    where = None if broker_conf is None else os.fspath(broker_conf)
    # A broker deletes what has expired, and has no key that says so; any other program is asked.
    properties = (
        {} if broker_conf is None else {_RETENTION_KEY: "true"} | load_broker_conf(broker_conf)
    )
    for key, text in with_store_host(properties | address).items():
        if key in FIELD_OF_KEY:
            texts[key] = text
            origins[key] = Origin("flag", "--set") if where is None else Origin("file", where)
        elif (warning := _note_unknown(key, text, strict=True)) is not None:
            warnings.append(f"{where}: {warning}")
    variables = os.environ if environment is None else environment
    for field, spec in FIELDS.items():
        variable = ENVIRONMENT_PREFIX + field.upper()
        if variable in variables:
            texts[spec.key] = variables[variable]
            origins[spec.key] = Origin("environment", variable)
    for key, text in apply_overrides(own).items():
        texts[key] = text
        origins[key] = Origin("flag", "--set")
    return LoadedConfig(from_properties(texts), origins, tuple(warnings))


def with_store_host(properties: Mapping[str, str]) -> dict[str, str]:
    """Add ``storeHost`` where only the broker's address is given (brokerIP1, listenPort)."""
    texts = dict(properties)
    address = texts.get(BROKER_ADDRESS_KEY, "").strip()
    if address and _STORE_HOST_KEY not in texts:
        port = texts.get(LISTEN_PORT_KEY, DEFAULT_LISTEN_PORT).strip()
        if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
            raise ConfigError(f"listenPort={port} is no port", key=LISTEN_PORT_KEY, value=port)
        texts[_STORE_HOST_KEY] = join_host(address, int(port))
    return texts


def parse_value(text: str, spec: FieldSpec) -> object:
    """Turn the text of an option into its value; `ConfigError` where it is not one."""
    if spec.kind is str:
        return text if text or not spec.nullable else None
    stripped = text.strip()
    if spec.kind is bool and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if spec.kind is int and _WHOLE_NUMBER.fullmatch(stripped):
        return int(stripped)
    if spec.kind is float and _NUMBER.fullmatch(stripped):
        return float(stripped)
    if issubclass(spec.kind, enum.Enum):
        with contextlib.suppress(ValueError):
            return spec.kind(stripped)
    raise ConfigError(
        f"{spec.key}={text}: expected {kind_name(spec.kind)}", key=spec.key, value=text
    )


def _why_idle(key: str) -> str:
    if key in BROKER_KEYS:
        return "an option of a broker, which a store does not have"
    return "an option of 4.9's store that has no effect here"


def _note_unknown(key: str, text: str, *, strict: bool) -> str | None:
    """Return a warning, None where the key is known to change nothing, or raise."""
    if key in _IDLE_KEYS:
        return None
    if key in KEYS_OF_5:
        return f"{key} is an option of RocketMQ 5 and is ignored"
    if strict and _nearest(key, _MISSPELT_RATIO):
        raise _unknown_key(key, text)
    return f"{key} is no option of 4.9's store or broker and is ignored"


def _unknown_key(key: str, text: str) -> ConfigError:
    if key in _IDLE_KEYS:
        return ConfigError(f"{key} is {_why_idle(key)}", key=key, value=text)
    nearest = _nearest(key, _SIMILAR_RATIO)
    return ConfigError(
        f"{key} is no option",
        key=key,
        value=text,
        hint=f"did you mean {nearest}?" if nearest else "see: rocketstore config show",
    )


def _nearest(key: str, ratio: float) -> str:
    """Return the option whose key resembles `key` most, empty where none does."""
    named = FIELDS.get(key)
    if named is not None:  # a snake-case name is the likeliest slip
        return named.key
    by_lower = {known.lower(): known for known in {*FIELD_OF_KEY, *KEYS_WITHOUT_EFFECT}}
    matches = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=ratio)
    return by_lower[matches[0]] if matches else ""
