"""New queues and index in the place of the old ones on an object store, where nothing is renamed.

    rebuild/<id>/consumequeue/…   new queues, whole before anything else is touched
    rebuild/<id>/index/…          new index files, named by number
    rebuild/<id>/keep.json        where copies of the old objects are being made
    rebuild/placing.json          the intent: from here on the new ones are put in place
    repair/<time>/…               copies of the old objects

Law: before ``placing.json`` is there the store is the old one, untouched. While it is there, queues
and index are a mixture, which every reader of this package refuses, and all new objects are whole
below ``rebuild/<id>``: whoever comes after a kill puts them in place again, from the beginning,
with the same outcome. When it is gone, the store is the new one.

How derived: decision 0017.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rocketstore.errors import StoreError
from rocketstore.events import get_logger
from rocketstore.format.markers import CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY
from rocketstore.pipeline.stores import PLACING_NAME, REBUILD_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rocketstore.pipeline.jobs.rebuild.settings import RebuildSettings
    from rocketstore.pipeline.objects import ObjectStore

_log: Final = get_logger(__name__)

_REPAIR_DIRECTORY: Final = "repair"
_KEEP_NAME: Final = "keep.json"


class _Keep(msgspec.Struct, frozen=True):
    """Where copies of the old objects are being made, relative to the store."""

    kept: str


class Placing(msgspec.Struct, frozen=True):
    """What is put in place.

    Attributes
    ----------
    staging
        Where the new objects are, relative to the store.
    names
        ``consumequeue``, ``index``: what is replaced.
    index_names
        The number that each index file is staged under, and its name.
    counts
        How many new objects each of `names` has.
    """

    staging: str
    names: tuple[str, ...]
    index_names: dict[str, str]
    counts: dict[str, int]


class StagedQueues(NamedTuple):
    """Where one rebuild makes its objects.

    Attributes
    ----------
    directory
        ``rebuild/<id>``, relative to the store.
    """

    objects: ObjectStore
    directory: str

    @property
    def path(self) -> str:
        """Path of the staging."""
        return f"{self.objects.root}/{self.directory}"

    @property
    def queues(self) -> str:
        """Path of the new ``consumequeue``."""
        return f"{self.path}/{CONSUME_QUEUE_DIRECTORY}"

    def checked(
        self, settings: RebuildSettings, names: tuple[str, ...], index_names: dict[str, str]
    ) -> Placing:
        """Compare what is staged with what has to be there, and say what is put in place.

        Raises
        ------
        StoreError
            An object has another size, or an index file is missing.
        """
        counts = {}
        wanted = {
            CONSUME_QUEUE_DIRECTORY: settings.queue_file_bytes,
            INDEX_DIRECTORY: settings.layout.size_bytes,
        }
        for name, size in wanted.items():
            found = self.objects.sizes(f"{self.path}/{name}")
            counts[name] = len(found)
            for path, object_bytes in found.items():
                if object_bytes != size:
                    raise StoreError(
                        f"{self.path}/{name}/{path} has {object_bytes} bytes: expected {size}",
                        hint="an upload was cut off; nothing was replaced: run the rebuild again",
                    )
            if name == INDEX_DIRECTORY and set(found) != set(index_names):
                raise StoreError(
                    f"{self.path}/{name} holds {len(found)} objects: expected {len(index_names)}",
                    hint="somebody else has written there; nothing was replaced",
                )
        return Placing(self.directory, names, index_names, counts)


def commit_objects(
    staged: StagedQueues,
    placing: Placing,
    *,
    now_ms: int,
    step: Callable[[str], None] = lambda _name: None,
) -> str | None:
    """Put new queues and index in place of the old ones.

    Returns
    -------
    str or None
        Where copies of the old ones are, relative to the store; None when there were none.

    Raises
    ------
    StoreError
        The object store refuses; the next rebuild finishes what was begun.
    """
    objects = staged.objects
    step("keep")
    kept = _keep_old(staged, placing.names, now_ms)
    step("intent")
    objects.put(_placing_path(objects), msgspec.json.encode(placing))
    _place(objects, placing, step)
    _log.info("rebuild.committed", root=objects.location, kept=kept)
    return kept


def finish_interrupted_objects(objects: ObjectStore) -> bool:
    """Finish or sweep what a rebuild that was killed left.

    Returns
    -------
    bool
        Whether queues and index were being put in place, and are now.
    """
    content = objects.content(_placing_path(objects))
    if content is None:
        sweep_unplaced(objects)
        return False
    path = _placing_path(objects)
    try:
        placing = msgspec.json.decode(content, type=Placing)
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"{path} does not say what a rebuild was putting in place: {error}",
            hint=f"look at what lies beside it, and remove {REBUILD_DIRECTORY}/ when nothing in "
            "it is needed",
        ) from error
    _place(objects, placing, lambda _name: None)
    _log.warning("rebuild.finished_interrupted", root=objects.location)
    return True


def sweep_unplaced(objects: ObjectStore) -> None:
    """Remove what a rebuild left that had not begun to put anything in place."""
    top = f"{objects.root}/{REBUILD_DIRECTORY}"
    found = objects.sizes(top)
    if PLACING_NAME in found:
        return
    for path in found:
        if path.rpartition("/")[2] == _KEEP_NAME:
            content = objects.content(f"{top}/{path}")
            kept = msgspec.json.decode(content, type=_Keep).kept if content else ""
            # The old objects are all in their places, so copies of some are of no use.
            if kept.startswith(f"{_REPAIR_DIRECTORY}/"):
                objects.remove_tree(f"{objects.root}/{kept}")
    if found:
        objects.remove_tree(top)


def _keep_old(staged: StagedQueues, names: Sequence[str], now_ms: int) -> str | None:
    objects = staged.objects
    old = [f"{name}/{path}" for name in names for path in objects.sizes(f"{objects.root}/{name}")]
    if not old:
        return None
    top = f"{objects.root}/{_REPAIR_DIRECTORY}"
    taken = {entry.name for entry in objects.files.list(top)}
    kept = f"{_REPAIR_DIRECTORY}/{kept_name(taken, now_ms)}"
    objects.put(f"{staged.path}/{_KEEP_NAME}", msgspec.json.encode(_Keep(kept)))
    objects.copy_all((f"{objects.root}/{path}", f"{objects.root}/{kept}/{path}") for path in old)
    return kept


def _place(objects: ObjectStore, placing: Placing, step: Callable[[str], None]) -> None:
    """Put all new objects in place and remove what is old; may be done again from the beginning."""
    for name in placing.names:
        source, target = f"{objects.root}/{placing.staging}/{name}", f"{objects.root}/{name}"
        staged = objects.sizes(source)
        if len(staged) != placing.counts[name]:
            # To go on would remove old objects that have no successor any more.
            raise StoreError(
                f"{source} holds {len(staged)} new objects: expected {placing.counts[name]}",
                hint=f"copies of the old ones are below {_REPAIR_DIRECTORY}/: put them back, and "
                f"remove {REBUILD_DIRECTORY}/",
            )
        names = placing.index_names
        new = {path: names[path] if name == INDEX_DIRECTORY else path for path in staged}
        step(f"place {name}")
        objects.copy_all((f"{source}/{path}", f"{target}/{final}") for path, final in new.items())
        step(f"remove {name}")
        gone = set(objects.sizes(target)) - set(new.values())
        _remove_all(objects, target, gone, new.values())
    step("finish")
    # First this, else a sweep would take the copies for those of a rebuild that replaced nothing.
    objects.remove(f"{objects.root}/{placing.staging}/{_KEEP_NAME}")
    objects.remove(_placing_path(objects))
    step("sweep")
    objects.remove_tree(f"{objects.root}/{REBUILD_DIRECTORY}")


def _remove_all(objects: ObjectStore, top: str, gone: Iterable[str], left: Iterable[str]) -> None:
    """Remove objects; a directory of which nothing is left as a whole, mark and all."""
    alive = {directory for path in left for directory in _directories(path)}
    trees = set()
    for path in gone:
        dead = next((one for one in _directories(path) if one not in alive), None)
        if dead is None:
            objects.remove(f"{top}/{path}")
        else:
            trees.add(dead)
    for directory in sorted(trees):
        objects.remove_tree(f"{top}/{directory}")


def _directories(path: str) -> list[str]:
    """Return the directories that a path goes through, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _placing_path(objects: ObjectStore) -> str:
    return f"{objects.root}/{REBUILD_DIRECTORY}/{PLACING_NAME}"


def kept_name(taken: set[str], now_ms: int) -> str:
    """Return a name for what is kept at this time, other than those that are taken."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    name = first = f"{moment:%Y%m%dT%H%M%S}{now_ms % 1000:03d}Z"
    number = 1
    while name in taken:
        number += 1
        name = f"{first}.{number}"
    return name
