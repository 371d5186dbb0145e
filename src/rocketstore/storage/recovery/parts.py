"""Log, queues, index and dispatcher of a store as they lie on the disk: what recovery works on.

An opening and a repair load the same parts; they differ in what they know and where they keep what
is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketstore.config import StoreConfig, StoreSizes, parse_delay_levels
from rocketstore.format.checkpoint import Checkpoint
from rocketstore.storage.checkpoint import promise_nothing
from rocketstore.storage.dispatch.dispatcher import Dispatcher
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.queues.queue_table import ConsumeQueueTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from rocketstore.storage.checkpoint import KnownEnds
    from rocketstore.storage.files.disk import Disk
    from rocketstore.storage.layout import StoreLayout
    from rocketstore.storage.recovery.evidence import Evidence


class RecoveryParts:
    """The loaded parts of a store, before anything is written; for most parameters see the parts.

    `drop_later` gets what lets go of each part, before the part has any file; `problems` is what
    was passed over or tolerated. Without a `checkpoint` nothing is promised. In a repair `evidence`
    keeps what is cut, and ``abort`` and checkpoint are the repair's, which wrote them as it needs
    them.
    """

    def __init__(  # noqa: PLR0913 - by name, what differs between an opening and a repair
        self,
        layout: StoreLayout,
        sizes: StoreSizes,
        config: StoreConfig,
        *,
        disk: Disk,
        clock: Callable[[], int],
        drop_later: Callable[[Callable[[], None]], object],
        after_crash: bool = True,
        readable_limit: Callable[[], int] = lambda: 0,
        forged: frozenset[int] = frozenset(),
        checkpoint: Checkpoint | None = None,
        known_ends: KnownEnds | None = None,
        evidence: Evidence | None = None,
        tz: tzinfo | None = None,
    ) -> None:
        self.layout, self.config, self.disk = layout, config, disk
        self.checkpoint = checkpoint or Checkpoint()
        self.known_ends, self.evidence = known_ends, evidence
        self.log = log = MappedFileQueue(
            layout.commit_log_directories,
            sizes.commit_log_file_bytes,
            disk=disk,
            read_only_directories=layout.read_only_directories,
        )
        self.queues = ConsumeQueueTable(
            layout.consume_queue,
            sizes.consume_queue_file_bytes,
            disk=disk,
            log_min_offset=lambda: log.min_offset,
        )
        self.index = IndexService(
            layout.index,
            sizes.index_layout,
            disk=disk,
            clock=clock,
            enabled=config.message_index_enable,
            tz=tz,
        )
        for part in (self.log, self.queues, self.index):
            drop_later(part.drop)
        self.problems = [
            *self.log.load(),
            *self.queues.load(after_crash=after_crash),
            *self.index.load(),
        ]
        self.dispatcher = Dispatcher(
            self.log,
            self.queues,
            self.index,
            readable_limit=readable_limit,
            delays_ms=parse_delay_levels(config.message_delay_level),
            multi_dispatch=config.enable_multi_dispatch,
            lmq=config.enable_lmq,
            forged=forged,
        )

    def promise_nothing(self) -> None:
        """Let an opening after an interruption check everything."""
        if self.evidence is None:
            promise_nothing(self.layout, self.disk)
