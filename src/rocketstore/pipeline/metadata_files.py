"""The JSON tables of a store's ``config`` directory, read as 4.9 reads them: a backup stands in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.errors import FormatError, StoreDamagedError
from rocketstore.format.markers import CONFIG_DIRECTORY
from rocketstore.format.metadata_json import BACKUP_SUFFIX, decode_table
from rocketstore.pipeline.files import files_at, opened

if TYPE_CHECKING:
    from rocketstore.format.metadata_json import Table
    from rocketstore.pipeline.stores import StorePlace


def read_metadata(store: StorePlace, name: str, table: type[Table]) -> Table | None:
    """Return a table of a store, None where there is neither it nor its backup.

    Parameters
    ----------
    store
        The store, whose broker may be running.
    name
        Name of the file, such as ``consumerOffset.json``.
    table
        The type to read it as.

    Raises
    ------
    StoreDamagedError
        What is there cannot be read as a table, the backup neither.

    Notes
    -----
    ``ConfigManager.load`` of 4.9: a table that is missing, empty or cannot be parsed is read from
    ``<name>.bak``. A broker that replaces the file leaves a moment without it; the backup is there.
    """
    files, root = files_at(store.location)
    directory = f"{root}/{CONFIG_DIRECTORY}"
    sizes = {entry.name: entry.size for entry in files.list(directory)}
    problems = []
    for wanted in (name, name + BACKUP_SUFFIX):
        if not sizes.get(wanted):
            continue
        with opened(files, f"{directory}/{wanted}") as file:
            content = file.read(0, sizes[wanted])
        try:
            return decode_table(content, table)
        except FormatError as error:
            problems.append(f"{directory}/{wanted} cannot be read: {error}")
    if problems:
        raise StoreDamagedError(
            "; ".join(problems), hint="bring back the table from a replica or an older copy"
        )
    return None
