"""The driver's side of a run on an object store: leftovers swept, a commit by one object.

Tasks write the objects of a run where they belong, under names that say their content. The manifest
is written last and is the commit.

Law: without its manifest a run is nothing, whatever lies below its prefix; the next run removes
that. With it the run is whole: every object that it names was compared by size before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.errors import ArchiveError
from rocketstore.pipeline.jobs.archive.layout import (
    CONFIG,
    EXTENTS,
    MANIFEST,
    MESSAGES,
    run_name,
)
from rocketstore.pipeline.jobs.archive.manifest import encode_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketstore.pipeline.jobs.archive.manifest import Manifest
    from rocketstore.pipeline.jobs.archive.place import ObjectPlace


def sweep_objects(archive: ObjectPlace, last_run: int) -> None:
    """Remove what runs that were never committed have left.

    Raises
    ------
    StoreError
        It cannot be removed.
    """
    for top in (MESSAGES, EXTENTS):
        for run in archive.begun_runs(top):
            if run > last_run:
                archive.objects.remove_tree(archive.path(top, run_name(run)))


def commit_objects(archive: ObjectPlace, manifest: Manifest, config: Mapping[str, bytes]) -> None:
    """Make a run part of the archive.

    Parameters
    ----------
    config
        Content of the store's JSON tables by name.

    Raises
    ------
    ArchiveError
        An object is missing or cut off, or somebody else has committed such a run.
    StoreError
        It cannot be written.
    """
    run = run_name(manifest.run)
    _check(archive, f"{MESSAGES}/{run}", {one.path: one.size for one in manifest.files})
    _check(archive, f"{EXTENTS}/{run}", {one.path: one.size for one in manifest.extents})
    for name, content in config.items():
        archive.objects.put(archive.path(MESSAGES, run, CONFIG, name), content)
    path = archive.path(MESSAGES, run, MANIFEST)
    if archive.content(path) is not None:
        raise ArchiveError(
            f"{path} is there already: somebody else has archived at the same time",
            hint="run the archive again, by one process at a time",
        )
    archive.objects.put(path, encode_manifest(manifest))


def _check(archive: ObjectPlace, directory: str, wanted: Mapping[str, int]) -> None:
    if not wanted:
        return
    found = archive.objects.sizes(archive.path(directory))
    for path, size in wanted.items():
        if found.get(path) != size:
            raise ArchiveError(
                f"{archive.path(directory)}/{path} has {found.get(path, 'no')} bytes: expected "
                f"{size}; nothing of this run is archived",
                hint="run the archive again",
            )
