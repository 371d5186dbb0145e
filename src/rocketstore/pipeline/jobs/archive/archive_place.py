"""The place of an archive: its Delta tables are opened and checked to be an archive's, or made.

Both tables have the property `IDENTITY`: a version of the layout, and a number that no other
archive has. Archives older than that are known by columns and partitioning alone.

Law: nothing is written to a place before all of it is known to be an archive, or empty; and a run
that fails before its first commit leaves a disk as it was. See docs/decisions/0039.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from rocketstore.errors import ArchiveError
from rocketstore.pipeline.jobs.publishing import DELTA_LOG, remove_empty
from rocketstore.places.files import entries_of, make_directories, missing_directories, sync_all
from rocketstore.places.location import is_remote, joined, local_path, refuse_secrets, uri_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake import DeltaTable

IDENTITY: Final = "rocketstore.archive"
_LAYOUT: Final = "1"
_ELSEWHERE: Final = "name an archive that this command made, or a place where there is nothing yet"


class TableKind(NamedTuple):
    """Definition of a table: its columns, its partitioning, columns with statistics."""

    columns: Any
    days: list[str]
    statistics: tuple[str, ...]


def open_tables(
    location: str, kinds: Mapping[str, TableKind], as_of: int | str | None, *, or_create: bool
) -> dict[str, DeltaTable]:
    """Return the tables of an archive, the first one as it was; missing ones may be made."""
    from deltalake import DeltaTable  # noqa: PLC0415 - of the driver only
    from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415 - as above

    tables = dict[str, DeltaTable]()
    place = _place_for_delta(location, kinds)
    with ExitStack() as links:
        if place != location:
            links.callback(shutil.rmtree, place, ignore_errors=True)
        for name in kinds:
            uri, options = table_uri(place, name)
            try:
                tables[name] = DeltaTable(uri, storage_options=options)
            except TableNotFoundError:
                found = entries_of(joined(location, name))  # which says so where it may not be read
                if not or_create:
                    raise
                if any(one.name != DELTA_LOG for one in found):
                    what = f"{joined(location, name)} is not empty, and no Delta table"
                    raise ArchiveError(what, hint=_ELSEWHERE) from None
        if as_of is not None:
            next(iter(tables.values())).load_as_version(as_of)
        identity = _checked(location, kinds, tables, is_written=or_create)
        for name in [one for one in kinds if one not in tables]:
            columns, days, statistics = kinds[name]
            if not is_remote(location):
                make_directories(Path(local_path(location), name, DELTA_LOG))
            uri, options = table_uri(place, name)
            identity = identity or f"{_LAYOUT} {uuid.uuid4().hex}"
            about = {"delta.dataSkippingStatsColumns": ",".join(statistics), IDENTITY: identity}
            tables[name] = DeltaTable.create(
                uri, columns, mode="ignore", partition_by=days, storage_options=options,
                configuration=about, raise_if_key_not_exists=False,
            )  # fmt: skip
            sync_log(location, name, 0)
            # Another archiver may have been quicker: the identity in its first table is for both.
            identity = tables[name].metadata().configuration.get(IDENTITY)
        weakref.finalize([*tables.values()][-1], links.pop_all().close)
    return tables


def sync_log(location: str, name: str, since: int) -> None:
    """Sync commits and checkpoints from a version on: an empty one makes a table unreadable."""
    if not is_remote(location):
        log = Path(local_path(location), name, DELTA_LOG)
        files = [one for one in log.iterdir() if one.suffix in {".json", ".parquet"}]
        sync_all([*(one for one in files if one.name >= f"{since:020}"), log, log.parent])


def _checked(
    location: str,
    kinds: Mapping[str, TableKind],
    tables: Mapping[str, DeltaTable],
    *,
    is_written: bool,
) -> str | None:
    """Return the identity in the tables; raise where they are not an archive's."""
    from deltalake import Schema  # noqa: PLC0415 - as above

    said: dict[str, str] = {}
    for name, table in tables.items():
        about, expected = table.metadata(), Schema.from_arrow(kinds[name].columns)
        wanted, found = (
            {one.name: one.type.to_json().strip('"') for one in kind.fields}
            for kind in (expected, table.schema())
        )
        # A reader may find an archive with more columns, or in other files.
        facts: list[tuple[str, Any, Any]]
        facts = [(f"column {one}", kind, found.get(one)) for one, kind in wanted.items()]
        if is_written:
            facts += [(f"column {one}", wanted.get(one), kind) for one, kind in found.items()]
            facts.append(("partitioning", kinds[name].days, about.partition_columns))
        if identity := about.configuration.get(IDENTITY):
            facts.append((f"layout ({IDENTITY})", _LAYOUT, identity.split()[0]))
            facts.append(("archive", next(iter(said), identity), identity))
            said[identity] = name
        if is_written and len(tables) < len(kinds):
            facts.append(("commits without its neighbour", 0, table.version()))
        # Files are read here as they are, and so would be what a vector says is deleted of them.
        has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
        if has_vectors and not is_written and any(one.num_rows for one in table.deletion_vectors()):
            what = f"{joined(location, name)} has deletion vectors: deleted rows would be restored"
            raise ArchiveError(what, hint="rewrite its files: REORG TABLE … APPLY (PURGE)")
        for fact, expect, is_ in facts:
            if expect != is_:
                what = f"{joined(location, name)} is not the table {name} of this archive: {fact}: "
                what += f"expected {expect or 'none'}, found {is_ or 'none'}; nothing was written"
                raise ArchiveError(what, hint=_ELSEWHERE)
    return next(iter(said), None)


def _place_for_delta(location: str, names: Mapping[str, TableKind]) -> str:
    """Return where `deltalake` finds the tables; what is not the location goes with them.

    In a path it takes ``%20`` for a blank, and a backslash for a slash; not in that of a link.
    """
    path = "" if is_remote(location) else local_path(location)
    if unquote(path) == path and "\\" not in path and (path.isprintable() or not path):
        return location
    place = tempfile.mkdtemp(prefix="rocketstore-archive-")
    for name in names:
        Path(place, name).mkdir()
        Path(place, name, DELTA_LOG).symlink_to(Path(path, name, DELTA_LOG))
    return place


@contextmanager
def taken_back(location: str, names: Mapping[str, TableKind]) -> Iterator[str]:
    """Yield a word for names of files; these, and new ones on a disk, go if the block fails."""
    token, root = uuid.uuid4().hex, "" if is_remote(location) else local_path(location)
    tables = [Path(root, name) for name in names] if root else []
    made = [one for table in tables for one in missing_directories(table)]
    try:
        yield token
    except BaseException:
        for table in tables:
            for path in table.rglob(f"*{token}*"):
                path.unlink(missing_ok=True)
            remove_empty(table.glob("*=*"))
            # Tasks of a job that failed may still write; where the table was, they cannot.
            inside = [one for one in table.rglob("*") if one.is_file() and token not in one.name]
            if table in made and len(inside) <= 1:  # its first commit, and no other since
                with suppress(OSError):
                    gone = table.rename(table.with_name(f".{table.name}.{token}"))
                    shutil.rmtree(gone, ignore_errors=True)
        remove_empty(made)
        raise


def table_uri(location: str, name: str) -> tuple[str, dict[str, str] | None]:
    """Return what ``deltalake`` opens a table of an archive by: a URI, and storage options.

    A location on an object store has the query that ``pyarrow.fs`` knows.

    Examples
    --------
    >>> table_uri("s3://bucket/archive?region=eu-west-1", "messages")
    ('s3://bucket/archive/messages', {'AWS_REGION': 'eu-west-1'})
    """
    if not is_remote(location):
        return Path(local_path(location), name).as_uri(), None
    refuse_secrets(location)
    place = uri_parts(joined(location, name))
    query = dict(parse_qsl(place.query))
    options = {"AWS_REGION": query["region"]} if "region" in query else {}
    if server := query.get("endpoint_override"):
        scheme = query.get("scheme", "https")
        options["AWS_ENDPOINT_URL"] = server if "://" in server else f"{scheme}://{server}"
        options["AWS_ALLOW_HTTP"] = str(scheme == "http").lower()
    return f"{place.scheme}://{place.netloc}{place.path}", options
