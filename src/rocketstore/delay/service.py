"""DelayService: the thread that delivers delayed messages and saves how far it is.

Law: nothing is delivered before it is known what was delivered already (K-S4). Copies are flushed
before ``delayOffset.json`` counts them, so the log holds them after a power cut as well. Later
deliveries are found in the log (`delay.copies`), so each message is delivered once, however the
process ended.

How derived: ScheduleMessageService of 4.9 (spec B18): one thread here instead of one per level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocketstore.delay.copies import resume
from rocketstore.delay.delivery import RETRY_MS, DelayedDelivery
from rocketstore.delay.levels import levels_of
from rocketstore.errors import FlushFailedError, StoreError
from rocketstore.events import get_logger
from rocketstore.format.metadata_json import DelayOffsets
from rocketstore.format.queue_entry import DELAY_TOPIC
from rocketstore.storage.attached import Service
from rocketstore.storage.threads import ServiceThread
from rocketstore.tables.delay_offsets import DelayOffsetTable

if TYPE_CHECKING:
    from rocketstore.storage.store import BaseStore

_log: Final = get_logger(__name__)


class DelayService(Service):
    """Delivers the delayed messages of an open store.

    `delivery` has the levels and what was done; None until it is known what was delivered before.
    """

    name = "delays"

    def __init__(self, store: BaseStore) -> None:
        self.delivery: DelayedDelivery | None = None
        self._store = store
        self._clock = store.clock
        self._table = DelayOffsetTable(store.layout, store.disk)
        self._thread = ServiceThread(
            "rocketstore-delay", self._work, on_death=store.running_flags.note_death
        )
        self._log_end_at_start = store.appended_physical_offset
        self._looked_at: int | None = None
        self._saved = DelayOffsets()
        self._to_save: tuple[DelayOffsets, int] | None = None
        self._next_save_ms = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and save how far it came."""
        self._thread.stop()
        if self.delivery is None:
            return
        try:
            state = self._state()
            if self._is_worth_saving(state):
                self._store.flush()
                self._save(state, self._store.appended_physical_offset)
        except (FlushFailedError, StoreError, OSError) as error:
            _log.error("delay.not_saved", path=str(self._table.path), error=str(error))

    def turn(self) -> float:
        """Deliver what is due and save what is to be saved; return the seconds until the next."""
        now_ms = self._clock()
        if self.delivery is None:
            if self._log_end_at_start < 0:
                self._log_end_at_start = self._store.settle()
            if not self._store.wait_dispatched(self._log_end_at_start, RETRY_MS / 1000):
                return 0.0
            self._resume()
            return 0.0
        try:
            pause_ms = self.delivery.run_once(now_ms)
        except BaseException:
            # The log may have a copy that was not noted: read the log again.
            self.delivery, self._log_end_at_start = None, -1
            raise
        self._save_in_time(now_ms)
        self._thread.went_well()
        return pause_ms / 1000

    def runtime_info(self) -> dict[str, object]:
        """Return what 4.9 tells of each level, delivered and last offset, and our counts."""
        if self.delivery is None:
            return {}
        numbers = {
            f"scheduleMessageOffset_{level.number}": f"{level.offset},{stop}"
            for level in self.delivery.levels
            if (stop := self._store.max_offset(DELAY_TOPIC, level.queue_id))
        }
        return {
            **numbers,
            "scheduleMessagesDelivered": self.delivery.delivered,
            "scheduleMessagesUndeliverable": self.delivery.undeliverable,
            "scheduleMessagesRefused": self.delivery.refused,
        }

    # --- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        pause_s = 0.0
        while not self._thread.stopping.wait(pause_s):
            pause_s = self.turn()

    def _resume(self) -> None:
        """Find out what is delivered."""
        levels, end = levels_of(self._store), self._log_end_at_start
        saved = self._table.load()
        is_over = self._thread.stopping.is_set
        found = resume(self._store, levels, saved, end, is_over)
        if is_over():
            return
        if saved.log_end is not None and saved.log_end <= end:
            self._looked_at = saved.log_end
            self._saved = saved
        if found:
            _log.info("delay.resumed", delivered_since_saved=found)
        self.delivery = DelayedDelivery(self._store, levels)

    # --- what is written down -------------------------------------------------------------------

    def _state(self) -> DelayOffsets:
        assert self.delivery is not None, "nothing is written down before it is known"
        levels = self.delivery.levels
        # As long as copies beyond a level's offset count, the log is read from the same place on.
        if not any(level.delivered for level in levels):
            self._looked_at = self._store.appended_physical_offset
        offsets = {level.number: level.offset for level in levels if level.offset}
        return DelayOffsets(log_end=self._looked_at, offset_table=offsets)

    def _is_worth_saving(self, state: DelayOffsets) -> bool:
        """Whether a message was delivered, or one waits and the log has grown."""
        assert self.delivery is not None
        if state.offset_table != self._saved.offset_table:
            return True
        is_waiting = any(
            self._store.max_offset(DELAY_TOPIC, level.queue_id) > level.offset
            for level in self.delivery.levels
        )
        return is_waiting and state.log_end != self._saved.log_end

    def _save_in_time(self, now_ms: int) -> None:
        interval_ms = self._store.config.flush_delay_offset_interval
        # A clock that was set back does not delay the next save.
        if self._to_save is None and not 0 < self._next_save_ms - now_ms <= interval_ms:
            self._next_save_ms = now_ms + interval_ms
            state = self._state()
            if self._is_worth_saving(state):
                self._to_save = state, self._store.appended_physical_offset
        if self._to_save is not None and self._store.flushed_physical_offset >= self._to_save[1]:
            saved, self._to_save = self._to_save, None
            self._save(*saved)

    def _save(self, state: DelayOffsets, counted: int) -> None:
        self._table.save(state, self._store.attached["log_mark"].after(counted))
        self._saved = state
