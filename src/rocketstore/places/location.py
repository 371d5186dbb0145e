"""What names a place: a path, a ``file:`` URI, or a URI that ``pyarrow.fs`` reaches.

A URI is no place for a secret: it stands in plans and errors.
"""

import functools
import os
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from rocketstore.errors import ConfigError

_SECRET_WORDS: Final = ("key", "secret", "token", "password", "signature", "credential", "sas")
S3_NAMES: Final = frozenset({"s3", "s3a", "s3n"})  # here and to Hadoop's clients


def is_remote(location: str) -> bool:
    """Tell whether a location is a URI that only ``pyarrow.fs`` reaches."""
    return "://" in location and urlsplit(location).scheme != "file"


def local_path(location: str) -> str:
    """Return the absolute path of a location on a disk: a path, or a ``file:`` URI.

    >>> local_path("file:/data/a"), local_path("file:///data/my%20store")
    ('/data/a', '/data/my store')
    >>> local_path("/data/my%20store")
    '/data/my%20store'
    """
    if not location or "\0" in location:
        what = f"{location!r} names no directory of this machine: it is empty, or has U+0000 in it"
        raise ConfigError(what, key="path", value=location, hint="name a directory")
    if location[:5].lower() != "file:":
        return _normal(location)
    path = location[5:]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest if host in ("", "localhost") else ""
    if not path.startswith("/"):
        raise ConfigError(
            f"{location} names no directory of this machine",
            key="path",
            value=location,
            hint="give an absolute path, as in file:///data/store, or a path without file:",
        )
    return _normal(unquote(path))


def _normal(path: str) -> str:
    """Return an absolute path; where it goes up again, it is what the system takes it for.

    Hadoop drops a name before a ``..`` whatever link it is, and the last name is a store's.
    """
    if "/../" in f"/{path}/":
        return os.path.realpath(path)
    return _without_doubles(path) if path.startswith("/") else str(Path(path).absolute())


@functools.lru_cache(maxsize=1024)
def _without_doubles(path: str) -> str:
    """Return a normalised absolute path; few are asked for, and those often."""
    return str(Path(path))


def uri_parts(location: str) -> SplitResult:
    """Return the parts of a URI, whose path goes on after a ``#``: a store has no fragments."""
    return urlsplit(location.replace("#", "%23"))


def refuse_secrets(location: str) -> None:
    """Raise where a URI holds a password or an access key; the error does not repeat it."""
    if not is_remote(location):
        return
    parts = uri_parts(location)
    user = parts.username if parts.scheme in S3_NAMES else None
    names = [name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    named = any(word in name for name in names for word in _SECRET_WORDS)
    if named or (user, parts.password) != (None, None):
        place = f"{parts.scheme}://…@{parts.hostname or ''}{parts.path}"
        raise ConfigError(
            f"{place} has a credential in it, which plans, logs and errors would repeat",
            hint="give credentials by the environment of the driver and of each executor, "
            "such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or by the role of the machine",
        )


def joined(location: str, *names: str) -> str:
    """Return the location of what lies below another one.

    >>> joined("s3://bucket/stores/?region=eu-west-1", "broker-a")
    's3://bucket/stores/broker-a?region=eu-west-1'
    """
    if not is_remote(location):
        return "/".join((local_path(location).rstrip("/"), *names))
    place, mark, query = location.partition("?")
    return "/".join((place.rstrip("/"), *map(quote, names))) + mark + query


def last_name(location: str) -> str:
    """Return the last name in a location: of a directory, or of a bucket.

    >>> last_name("s3://bucket/broker-a?region=eu-west-1"), last_name("/data/broker-b")
    ('broker-a', 'broker-b')
    """
    remote = is_remote(location)
    place = location.partition("?")[0].rstrip("/") if remote else local_path(location)
    name = place.rpartition("/")[2]
    return unquote(name) if remote else name
