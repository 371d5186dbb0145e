"""Options whose text has a grammar of its own: hours, delays, lists of directories, an address."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import ConfigError

if TYPE_CHECKING:
    from rocketstore.config.store_config import StoreConfig

_DELAY: Final = re.compile(r"([0-9]{1,12})([smhd])")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class CommitLogDirectories(NamedTuple):
    """Where CommitLog files lie."""

    writable: tuple[Path, ...]
    read_only: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        """Every directory that is read."""
        return self.writable + self.read_only


def parse_delete_hours(text: str) -> frozenset[int]:
    """Return the hours of ``deleteWhen``.

    Raises
    ------
    ConfigError
        A part is no hour from 0 to 23.

    Notes
    -----
    Source: UtilAll.isItTimeToDo, which silently never deletes when a part is no hour.

    Examples
    --------
    >>> sorted(parse_delete_hours("04;16"))
    [4, 16]
    """
    hours = set()
    for hour in filter(None, map(str.strip, text.split(";"))):
        if not (hour.isascii() and hour.isdigit() and len(hour) <= 2 and int(hour) <= 23):
            raise ConfigError(
                f"deleteWhen={text}: {hour!r} is no hour from 00 to 23",
                key="deleteWhen",
                value=text,
                hint='write hours separated by ";", for example 04;16',
            )
        hours.add(int(hour))
    return frozenset(hours)


def parse_delay_levels(text: str) -> dict[int, int]:
    """Return the delay in ms of each level, from 1.

    Raises
    ------
    ConfigError
        A part is not a number followed by s, m, h or d.

    Notes
    -----
    Source: ScheduleMessageService.parseDelayLevel.

    Examples
    --------
    >>> parse_delay_levels("1s 5s 1m")
    {1: 1000, 2: 5000, 3: 60000}
    """
    levels = {}
    for level, part in enumerate(text.split(), start=1):
        match = _DELAY.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"messageDelayLevel: {part!r} is no delay",
                key="messageDelayLevel",
                value=text,
                hint="write numbers with s, m, h or d, separated by blanks: 1s 5s 1m 2h",
            )
        levels[level] = int(match[1]) * _UNIT_MS[match[2]]
    return levels


def commit_log_directories(config: StoreConfig, root: Path) -> CommitLogDirectories:
    """Return where the CommitLog files of the store at `root` lie.

    A directory below ``storePathRootDir`` is taken below `root` instead where the two differ: a
    copied store opens with the ``broker.conf`` of its origin and never touches the original.
    """

    def directories(text: str | None) -> tuple[Path, ...]:
        parts = [] if text is None else text.split(config.multi_path_splitter)
        paths = (_below_root(part.strip(), config, root) for part in parts if part.strip())
        return tuple(dict.fromkeys(paths))

    read_only = directories(config.read_only_commit_log_store_paths)
    writable = directories(config.store_path_commit_log) or (root / "commitlog",)
    # 4.9 lists a read-only directory in both options to drain it; it is written no more.
    return CommitLogDirectories(
        tuple(path for path in writable if path not in read_only), read_only
    )


def _below_root(text: str, config: StoreConfig, root: Path) -> Path:
    path = Path(text)
    configured = config.store_path_root_dir
    if configured is not None and path.is_relative_to(configured):
        return root / path.relative_to(configured)
    return path


def join_host(ip: str, port: int) -> str:
    """Return ``ip:port``, or ``[v6]:port``."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def check_host(text: str) -> None:
    """Check that `text` is ``ip:port`` or ``[v6]:port`` with a literal address.

    Raises
    ------
    ConfigError
        It is not; host names are refused, because a message id holds the address itself.
    """
    address, _, port = text.rpartition(":")
    is_v6 = address.startswith("[") and address.endswith("]")
    literal = address[1:-1] if is_v6 else address
    version = number = -1
    with contextlib.suppress(ValueError):
        version = ipaddress.ip_address(literal).version
        number = int(port) if port.isascii() and port.isdigit() else -1
    # A zone (fe80::1%eth0) has no place in a message id.
    if not (0 <= number <= 65_535 and version == (6 if is_v6 else 4)) or "%" in literal:
        raise ConfigError(
            f"storeHost={text}: expected ip:port or [v6]:port", key="storeHost", value=text
        )
