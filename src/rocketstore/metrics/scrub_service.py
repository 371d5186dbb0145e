"""The scrubber of an open store: some bytes a second, a pause under load, a saved map.

Law: the damage map is replaced as a whole, after a turn that changed it. One that cannot be read or
written stops nothing: it is logged, kept in memory, and written at the next turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocketstore.errors import FormatError, StoreError
from rocketstore.events import get_logger
from rocketstore.metrics.damage_map import (
    DAMAGE_MAP_FILE_NAME,
    DamageMap,
    decode_damage_map,
    encode_damage_map,
)
from rocketstore.metrics.scrub import Scrubber
from rocketstore.rules.files import FileProblem
from rocketstore.storage.attached import Service
from rocketstore.storage.files.pread_files import PreadFiles
from rocketstore.storage.files.whole_file import replace_whole
from rocketstore.storage.metric import Metric, counter, gauge
from rocketstore.storage.threads import Periodic

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.storage.store import BaseStore

TURN_INTERVAL_S: Final = 1.0
"""A turn a second: its share of the disk is spread, and a stop waits for one turn at most."""

_log: Final = get_logger(__name__)


def read_damage_map(root: Path) -> DamageMap:
    """Return the known damage of the store at `root`; none without a usable map."""
    path = root / DAMAGE_MAP_FILE_NAME
    try:
        return decode_damage_map(path.read_bytes())
    except FileNotFoundError:
        return DamageMap()
    except (OSError, FormatError) as error:
        _log.warning("scrub.map_unreadable", path=str(path), error=str(error))
        return DamageMap()


class ScrubService(Service):
    """Checks the cold files of an open store, if ``scrubBytesPerSecond`` says so."""

    name = "scrub"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._path = store.layout.root / DAMAGE_MAP_FILE_NAME
        self._written = read_damage_map(store.layout.root)
        self._budget = int(store.config.scrub_bytes_per_second * TURN_INTERVAL_S)
        self._pause_above = store.config.scrub_pause_above
        self._scrubber: Scrubber | None = None
        self._thread = Periodic("rocketstore-scrub", self.turn, TURN_INTERVAL_S)

    def start(self) -> None:
        """Begin, unless nothing is to be checked."""
        if self._budget:
            self._thread.start()

    def stop(self) -> None:
        """End after the running turn, and keep what is known."""
        self._thread.stop()
        self._keep()

    def turn(self) -> None:
        """Check the bytes of one second, unless the store is busy."""
        if self._scrubber is None:
            store = self._store
            sizes = store.config.mapped_file_size_commit_log
            self._scrubber = Scrubber(
                PreadFiles(store.layout.log_directories, file_size=sizes),
                cold_end=lambda: store.flushed_physical_offset,
                now_ms=store.clock,
                known=self._written,
            )
        if not self.is_paused:
            self._scrubber.turn(self._budget)
        self._keep()

    @property
    def known(self) -> DamageMap:
        """What is known to be damaged, by this process or an earlier one."""
        return self._written if self._scrubber is None else self._scrubber.map

    @property
    def is_paused(self) -> bool:
        """Whether the store puts and gets too many messages a second to be disturbed."""
        statistics = self._store.statistics
        load = statistics.rates("put")[0] + statistics.rates("transferred")[0]
        return load > self._pause_above

    def runtime_info(self) -> dict[str, int]:
        """Return the scrubber's part of the runtime information."""
        known, scrubber = self.known, self._scrubber
        return {
            "scrubPasses": known.passes,
            "scrubPosition": known.position,
            "scrubCheckedBytes": 0 if scrubber is None else scrubber.checked_bytes,
            "scrubDamagedRanges": len(known.damage),
            "scrubDamagedBytes": sum(one.size for one in known.damage),
            "scrubLastPassTimestamp": known.last_pass_timestamp,
        }

    def metrics(self) -> Iterator[Metric]:
        """Yield what is known to be damaged, and how far the check is."""
        known, name = self.known, "rocketstore_store"
        text = "Bytes that the check of old files knows to be damaged."
        damaged = dict(sorted(known.damaged_bytes.items()))
        yield gauge(f"{name}_damaged_bytes", text, damaged, "reason")
        text = "What opening and the check of old files found, by the kinds of `store verify`."
        kinds = dict(sorted(Counter(self._kinds(known)).items()))
        yield gauge("rocketstore_audit_findings", text, kinds, "kind")
        text = "Offset from which the check goes on."
        yield gauge(f"{name}_scrub_position_bytes", text, known.position)
        yield gauge(f"{name}_scrub_passes", "Whole passes of the check.", known.passes)
        text, ended_ms = "When the last whole pass ended; 0 without any.", known.last_pass_timestamp
        yield gauge(f"{name}_scrub_last_pass_timestamp_seconds", text, ended_ms / 1000)
        text = "Bytes that this process has checked."
        checked = 0 if self._scrubber is None else self._scrubber.checked_bytes
        yield counter(f"{name}_scrub_checked_bytes", text, checked)

    def _kinds(self, known: DamageMap) -> Iterator[str]:
        """Yield the kind of each finding; a file that is missing in the log is a hole of it."""
        yield from ("log-damage" if one.file else "log-hole" for one in known.damage)
        layout = self._store.layout
        parts = {"queue": layout.consume_queue, "index": layout.index}
        for one in self._store.problems:
            above = one.path.parents
            part = next((name for name, root in parts.items() if root in above), "log")
            if part != "log" or one.problem is not FileProblem.MISSING:
                yield f"{part}-{one.problem.kind}"
            elif not known.passes:  # else it is among what is known
                yield "log-hole"

    def _keep(self) -> None:
        known = self.known
        if known is self._written:
            return
        try:
            replace_whole(self._path, encode_damage_map(known), self._store.disk)
        except (OSError, StoreError) as error:
            _log.warning("scrub.map_unwritten", path=str(self._path), error=str(error))
        else:
            self._written = known
