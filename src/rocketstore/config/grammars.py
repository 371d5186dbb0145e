"""Options whose text has a grammar of its own."""

import functools
import re
from collections.abc import Mapping
from typing import Final

from rocketstore.errors import ConfigError

_HOUR: Final = re.compile(r"[01]?[0-9]|2[0-3]")
_DELAY: Final = re.compile(r"([0-9]{1,12})([smhd])")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_MOST_DELAY_MS: Final = 2**62
"""The sum with a store time has room in an entry."""


def parse_delete_hours(text: str) -> frozenset[int]:
    """Return the hours of ``deleteWhen``.

    Raises `ConfigError` where a part is not an hour from 0 to 23. Source: UtilAll.isItTimeToDo,
    which silently never deletes then.

    >>> sorted(parse_delete_hours("04;16"))
    [4, 16]
    """
    hours = [hour for hour in map(str.strip, text.split(";")) if hour]
    wrong = next((hour for hour in hours if not _HOUR.fullmatch(hour)), None if hours else text)
    if wrong is not None:
        raise ConfigError(
            f"deleteWhen={text}: {wrong!r} is not an hour from 00 to 23",
            key="deleteWhen",
            value=text,
            hint='write hours separated by ";", for example 04;16',
        )
    return frozenset(map(int, hours))


def parse_address(key: str, text: str, hint: str) -> tuple[str, int]:
    """Return host and port of a ``host:port``, or of one of several in an option.

    Raises `ConfigError`, with a hint, where it is not one.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536 or set(host) & set(",; "):
        raise ConfigError(f"{key}={text}: expected host:port", key=key, value=text, hint=hint)
    return host.strip("[]"), int(port)


@functools.cache  # each opening asks several times
def parse_delay_levels(text: str) -> Mapping[int, int]:
    """Return the delay in ms of each level, from 1.

    Raises `ConfigError` where a part is not a number followed by s, m, h or d. Source:
    ScheduleMessageService.parseDelayLevel.

    >>> parse_delay_levels("1s 5s 1m")
    {1: 1000, 2: 5000, 3: 60000}
    """
    levels = {}
    for level, part in enumerate(text.split(), start=1):
        match = _DELAY.fullmatch(part)
        delay_ms = int(match[1]) * _UNIT_MS[match[2]] if match else _MOST_DELAY_MS + 1
        if delay_ms > _MOST_DELAY_MS:
            raise ConfigError(
                f"messageDelayLevel: {part!r} is not a delay",
                key="messageDelayLevel",
                value=text,
                hint="write numbers with s, m, h or d, separated by blanks: 1s 5s 1m 2h",
            )
        levels[level] = delay_ms
    return levels
