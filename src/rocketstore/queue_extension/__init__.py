"""Extensions of ConsumeQueues: tags, store time and bit map of each entry (enableConsumeQueueExt).

A room between the files of `storage` and its queues, in a package of its own since few stores have
extensions: `storage` loads the rest of it where one is written or read. Page:
docs/how-it-works/queue-extension.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rocketstore.config import StoreConfig
    from rocketstore.queue_extension.writer import QueueExtensions
    from rocketstore.storage.files.disk import Disk


def extensions_of(directory: Path, config: StoreConfig, disk: Disk) -> QueueExtensions | None:
    """Return what makes extensions of queues in `directory`, None where there are to be none."""
    if not config.enable_consume_queue_ext:
        return None
    from rocketstore.queue_extension.writer import QueueExtensions  # noqa: PLC0415 - few need it

    return QueueExtensions(directory, config, disk)
