"""Options that several commands share."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from cyclopts import Parameter

from rocketstore.config import LoadedConfig, StoreConfig, load_config

STANDARD_INPUT: Final = "/dev/stdin"
"""What a lone dash stands for."""

Output = Literal["table", "json", "jsonl"]
"""How results are printed: a table for people, a JSON array or JSON lines for programs."""

OutputOption = Annotated[Output, Parameter(name="--output", help="table, json or jsonl.")]

StoreArgument = Annotated[Path, Parameter(name="STORE", help="Directory of the store.")]

# A text: a path would make one slash of two.
StoreLocation = Annotated[str, Parameter(name="STORE", help="Directory of the store, or its URI.")]

ArchiveLocation = Annotated[
    str, Parameter(name="ARCHIVE", help="Directory of the archive, or its URI.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class StoreSettings:
    """Where settings come from: ``--config broker.conf`` first, then each ``--set key=value``."""

    config: Annotated[
        Path | None,
        Parameter(name="--config", help="A broker.conf; its keys are used as they are."),
    ] = None
    set_: Annotated[
        list[str],
        Parameter(name="--set", help="Any broker.conf key as key=value; repeatable.", negative=()),
    ] = field(default_factory=list)

    def load(self) -> StoreConfig:
        """Return the settings, checked."""
        return self.load_with_origins().config

    def load_for_writing(self) -> StoreConfig:
        """Return the settings of a store that a command writes to: none deletes expired files.

        Law: retention runs only in a store that a program opened (DESIGN 4.11), whatever is set.
        """
        return msgspec.structs.replace(self.load(), retention=False)

    def load_with_origins(self) -> LoadedConfig:
        """Return the settings with where each comes from; warnings go to stderr."""
        loaded = load_config(broker_conf=self.config, overrides=self.set_)
        for warning in loaded.warnings:
            print(f"rocketstore: {warning}", file=sys.stderr)
        return loaded
