"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from rocketstore.cli.wording import complain
from rocketstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rocketstore.config import StoreConfig
    from rocketstore.config.sources import LoadedConfig

Output = Literal["table", "json", "jsonl"]
"""How results are printed: a table for people, a JSON array or JSON lines for programs."""

OutputOption = Annotated[Output, Parameter(name=["--output", "-o"], help="table, json or jsonl.")]

BodyForm = Literal["text", "json", "hex", "base64"]

BodyOption = Annotated[
    BodyForm | None,
    Parameter(
        name=["--body", "-b"],
        help="How bodies are printed; unset: in tables as text if they are text, else base64.",
    ),
]

TopicOption = Annotated[str, Parameter(name=["--topic", "-t"])]
QueueOption = Annotated[int, Parameter(name=["--queue", "-q"])]
MaxOption = Parameter(name=["--max", "-n"], validator=validators.Number(gte=0))

SparkOption = Annotated[str, Parameter(name="--master", help="Where Spark runs.")]
SplitOption = Annotated[
    int,
    Parameter(
        name="--split-mib",
        help="Most MiB of the log that one task takes.",
        validator=validators.Number(gte=1),
    ),
]

StoreArgument = Annotated[Path, Parameter(name="STORE", help="Directory of the store.")]

# A text: a path would make one slash of two.
StoreLocation = Annotated[str, Parameter(name="STORE", help="Directory of the store, or its URI.")]

ArchiveLocation = Annotated[
    str, Parameter(name="ARCHIVE", help="Directory of the archive, or its URI.")
]


def _time_of(_type: Any, tokens: Sequence[Any]) -> int:
    from rocketstore.cli.moments import parse_time

    return parse_time(tokens[0].value)


_TIMES = "milliseconds since 1970, ISO 8601 (of this zone if it names none), or ago: -2h, -7d."

BeginOption = Annotated[
    int | None,
    Parameter(
        name="--begin",
        help=f"Only messages stored from this time on: {_TIMES}",
        metavar="TIME",
        converter=_time_of,
        allow_leading_hyphen=True,
        n_tokens=1,
    ),
]
EndOption = Annotated[
    int | None,
    Parameter(
        name="--end",
        help="Only messages stored before this time.",
        metavar="TIME",
        converter=_time_of,
        allow_leading_hyphen=True,
        n_tokens=1,
    ),
]


def must_exist(directory: Path | str, *, hint: str | None = None) -> None:
    """Refuse a missing directory before anything else is done; a URI is not checked.

    Raises
    ------
    StoreError
        It is not there.
    """
    if "://" not in str(directory) and not Path(directory).exists():
        raise StoreError(f"{directory}: there is no such directory", hint=hint)


@Parameter(name="*")
@dataclass(frozen=True)
class StoreSettings:
    """Where settings come from: ``--config broker.conf`` first, then each ``--set key=value``."""

    config: Annotated[
        Path | None,
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
        """Return the checked settings; a given store has to exist, unless it is a URI.

        Raises
        ------
        ConfigError
            See `rocketstore.config.load_config`.
        StoreError
            There is no `store`.
        """
        config = self.load_with_origins().config
        if store is not None:
            must_exist(store, hint="name the one that holds commitlog, consumequeue and index")
        return config

    def load_with_origins(self, others: Collection[str] = ()) -> LoadedConfig:
        """Return the settings and the source of each; warnings go to stderr.

        `others` are keys that the caller handles itself.
        """
        from rocketstore.config import load_config

        if self.config is not None and not self.config.exists():
            raise StoreError(f"{self.config}: there is no such file")
        loaded = load_config(broker_conf=self.config, overrides=self.set_, others=others)
        for warning in loaded.warnings:
            complain(warning)
        return loaded
