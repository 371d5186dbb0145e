"""Options that several commands share.

Law: a range of time begins with ``--begin``, which it includes, and ends before ``--end``.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter, Token, validators

from rocketstore.cli.wording import complain
from rocketstore.errors import ConfigError, StoreError
from rocketstore.units import system_clock_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rocketstore.config import StoreConfig
    from rocketstore.config.sources import LoadedConfig
    from rocketstore.storage.read_only import ReadOnlyStore
    from rocketstore.storage.store import BaseStore

Output = Literal["table", "json", "jsonl"]
"""How results are printed: a table for people, a JSON array or JSON lines for programs."""

OutputOption = Annotated[Output, Parameter(name=["--output", "-o"], help="table, json or jsonl.")]

BodyForm = Literal["text", "json", "hex", "base64"]

BodyOption = Annotated[
    BodyForm | None,
    Parameter(
        name=["--body", "-b"],
        help="How bodies are printed; unset: in tables as text, or as hex if they are not "
        "text; in JSON as base64.",
    ),
]

TopicOption = Annotated[str, Parameter(name=["--topic", "-t"], help="Topic of the messages.")]
QueueOption = Annotated[int, Parameter(name=["--queue", "-q"], help="Queue id.")]
MaxOption = Parameter(name=["--max", "-n"], validator=validators.Number(gte=0, lte=sys.maxsize))

SparkOption = Annotated[str, Parameter(name="--master", help="Where Spark runs.")]
SplitOption = Annotated[
    int,
    Parameter(
        name="--split-mib",
        help="Most MiB of the log that one task takes.",
        validator=validators.Number(gte=1),
    ),
]


def _place(kind: Any, tokens: Sequence[Token]) -> Any:
    """Refuse what a shell's variable without a value gives: it would be the current directory."""
    text = tokens[0].value
    if not text:
        raise ValueError("the path is empty; name a directory or a file.")
    if kind is str:
        return text
    if "://" in text:  # a path would make one slash of two, and a store of that name be made
        raise ValueError("a URI is no directory of this machine; give a path.")
    return Path(text)


PATH: Final = Parameter(converter=_place)
"""Of an option whose value is a path."""


StoreArgument = Annotated[
    Path, Parameter(name="STORE", help="Directory of the store.", converter=_place)
]
MadeStoreArgument = Annotated[
    StoreArgument, Parameter(help="Directory of the store; made when there is none.")
]

# Texts, since URIs are taken.
OutOption = Annotated[str | None, PATH]
StoreLocation = Annotated[
    str, Parameter(name="STORE", help="Directory of the store, or its URI.", converter=_place)
]

ArchiveLocation = Annotated[
    str, Parameter(name="ARCHIVE", help="Directory of the archive, or its URI.", converter=_place)
]


_AGO: Final = re.compile(r"-(\d{1,9})(ms|s|m|h|d|w)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000,
                   "w": 604_800_000}  # fmt: skip
_EARLIEST_MS: Final = 10**11
"""A smaller number (before March 1973) cannot be a store's time: it is an offset or seconds."""


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Return milliseconds since 1970; `ConfigError` where a text is no time.

    It is milliseconds since 1970; a date or time of ISO 8601, in the zone of this machine if it
    names none; or how long before now: ``-90s``, ``-2h``, ``-7d``.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        now_ms = system_clock_ms() if now_ms is None else now_ms
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    is_number = text.isascii() and text.isdecimal()
    if is_number and (int(text) == 0 or int(text) >= _EARLIEST_MS):
        return int(text)
    try:
        # Eight digits alone are a date; datetime would read longer numbers as times, too.
        if not is_number or len(text) == 8:
            return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise ConfigError(
        f"{text!r} is not a time",
        value=text,
        hint="give milliseconds since 1970, a time such as 2026-11-21T10:00:00+01:00, or how "
        "long ago, such as -90s, -2h or -7d",
    )


def _time_of(_type: Any, tokens: Sequence[Any]) -> int:
    return parse_time(tokens[0].value)


_TIMES = "milliseconds since 1970, ISO 8601 (of this zone if it names none), or ago: -2h, -7d."

_TIME: Final = Parameter(metavar="TIME", converter=_time_of, allow_leading_hyphen=True, n_tokens=1)
BeginOption = Annotated[
    int | None,
    _TIME,
    Parameter(name="--begin", help=f"Only messages stored from this time on: {_TIMES}"),
]
EndOption = Annotated[
    int | None, _TIME, Parameter(name="--end", help="Only messages stored before this time.")
]


def _as_of(_type: Any, tokens: Sequence[Any]) -> int | str:
    """Return a version, or a time; one that is still to come is the latest."""
    text = tokens[0].value
    if text.isascii() and text.isdecimal():
        return int(text)
    time_ms = min(max(parse_time(text), 0), system_clock_ms())
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


AsOfOption = Annotated[
    int | str | None, Parameter(converter=_as_of, allow_leading_hyphen=True, n_tokens=1)
]


def must_exist(place: Path | str, what: str = "directory", *, hint: str | None = None) -> None:
    """Refuse what is missing before anything else is done; a URI is not checked."""
    if isinstance(place, str):
        from rocketstore.places.location import is_remote, local_path

        if is_remote(place):
            return
        place = Path(local_path(place))
    if not place.exists():  # the whole path shows a command that was run elsewhere
        raise StoreError(f"{place.absolute()}: there is no such {what}", hint=hint)


@Parameter(name="*")
@dataclass(frozen=True)
class StoreSettings:
    """Where settings come from: ``--config broker.conf`` first, then each ``--set key=value``."""

    config: Annotated[
        Path | None,
        PATH,
        Parameter(name=["--config", "-c"], help="A broker.conf; its keys are used as they are."),
    ] = None
    set_: Annotated[
        list[str],
        Parameter(
            name=["--set", "-s"],
            help="Any broker.conf key as key=value; repeatable.",
            negative=(),
            show_default=False,
        ),
    ] = field(default_factory=list)

    def load(self, store: Path | str | None = None) -> StoreConfig:
        """Return the checked settings; a given store has to exist, unless it is a URI."""
        config = self.load_with_origins().config
        if store is not None:
            must_exist(store, hint="name the one that holds commitlog, consumequeue and index")
        return config

    def open(self, store: Path) -> ReadOnlyStore:
        """Open a store to read, beside any writer: without a lock, and without changing a byte."""
        from rocketstore.storage.read_only import ReadOnlyStore

        return ReadOnlyStore.open(store, self.load(store))

    def open_for_writing(self, store: Path) -> BaseStore:
        """Open a store to put into, alone and without services; make it where there is none.

        Law: a command that writes opens its store so; only ``serve`` and the demo run services. It
        delivers no delayed message, listens at no port, scrubs nothing, and deletes no expired
        file, whatever the settings say that it shares with a broker.
        """
        import msgspec

        from rocketstore.config import BrokerRole
        from rocketstore.storage.store import BaseStore

        config = msgspec.structs.replace(self.load(), retention=False)
        if config.broker_role is BrokerRole.SYNC_MASTER:
            # No slave is connected now: each gets the messages when the store is served again.
            config = msgspec.structs.replace(config, broker_role=BrokerRole.ASYNC_MASTER)
        return BaseStore.open(store, config)

    def load_with_origins(self, others: Collection[str] = ()) -> LoadedConfig:
        """Return the settings and the source of each; warnings go to stderr.

        `others` are keys that the caller handles itself.
        """
        from rocketstore.config import load_config

        if self.config is not None:
            must_exist(self.config, "file")
        loaded = load_config(broker_conf=self.config, overrides=self.set_, others=others)
        for warning in loaded.warnings:
            complain(warning)
        return loaded


@Parameter(name="*")
@dataclass(frozen=True)
class CommandOptions(StoreSettings):
    """What nearly every command takes: settings, and how its result is printed."""

    output: OutputOption = "table"


DEFAULTS: Final = CommandOptions()
"""Of a command that is given none of them."""
