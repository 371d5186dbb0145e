"""What dispatch writes into empty queues and an empty index: the bytes a rebuild has to equal."""

from rocketstore.config import StoreConfig, parse_delay_levels
from rocketstore.places.store_listing import list_store
from rocketstore.rules.extra_queues import has_light_queues
from rocketstore.storage.dispatch.dispatcher import Dispatcher
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.files.mapped_file_queue import MappedFileQueue
from rocketstore.storage.index.index_service import IndexService
from rocketstore.storage.queues.queue_table import ConsumeQueueTable
from support.trees import tree


def queues_and_index(store):
    """Return the bytes of both; the names of index files follow the clock."""
    return tree(store / "consumequeue"), list(tree(store / "index").values())


def dispatched(store, target, *, config=None, stop=None, skipped=()):
    """Dispatch a store's log into empty directories below `target`; return queues and index."""
    config = config or StoreConfig()
    places = list_store(str(store), config)
    disk = Disk()
    sizes = [path.stat().st_size for path in (store / "commitlog").iterdir() if path.is_file()]
    log = MappedFileQueue(store / "commitlog", max(sizes, default=1024), disk=disk)
    log.load()
    queues = ConsumeQueueTable(
        target / "consumequeue",
        places.sizes.consume_queue_file_bytes,
        disk=disk,
        log_min_offset=lambda: log.min_offset,
    )
    index = IndexService(
        target / "index", places.sizes.index_layout, disk=disk, clock=lambda: 1_700_000_000_000,
        is_enabled=config.message_index_enable,
    )  # fmt: skip
    dispatcher = Dispatcher(
        log,
        queues,
        index,
        readable_limit=lambda: log.max_offset,
        delays_ms=parse_delay_levels(config.message_delay_level),
        lmq=has_light_queues(config),
    )
    files_stop = log.files[-1].base + log.files[-1].size if log.files else 0
    at = max(log.min_offset, 0)
    for start, behind in [*skipped, (files_stop if stop is None else stop, None)]:
        if at < start:
            dispatcher.dispatch_range(at, start, force=False, check_crc=True)
        at = behind
    queues.flush()
    index.flush()
    for part in (log, queues, index):
        part.drop()
    return queues_and_index(target)
