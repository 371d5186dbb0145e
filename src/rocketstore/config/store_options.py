"""The options of the store itself: its files, puts, reads, index, recovery, retention, queues."""

import enum
from typing import Annotated, Any, Final, Self

import msgspec

from rocketstore.config.option import Option, broker_conf_key
from rocketstore.errors import ConfigError
from rocketstore.units import KiB, MiB

LEAST_LOG_FILE_BYTES: Final = 128
SMALL_SIZES: Final[dict[str, Any]] = {
    # Whole pages, with space for 4.9.8's longest record (4 MiB and 64 KiB) and a BLANK after it.
    "mapped_file_size_commit_log": 4 * MiB + 68 * KiB,
    "mapped_file_size_consume_queue": 20 * KiB,
    "max_hash_slot_num": 2_500,
    "max_index_num": 10_000,
}
"""Sizes of `StoreConfig.small`, by field."""


class FlushDiskType(enum.Enum):
    """When a put is acknowledged."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class RecoveryPolicy(enum.Enum):
    """What an open after a crash keeps."""

    SALVAGE = "salvage"
    COMPATIBLE = "compatible"

    @classmethod
    def of(cls, policy: object) -> Self:
        """Return a policy, also by its name; `ConfigError` where no policy has it."""
        try:
            return cls(policy)
        except ValueError:
            raise ConfigError(
                f"{policy!r:.60} is no policy", hint='give "salvage" or "compatible"'
            ) from None


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True, rename=broker_conf_key):
    """Where files lie, how long they are, and how messages are put, read, kept and deleted."""

    # --- where files lie ------------------------------------------------------------------------
    store_path_root_dir: str | None = None
    """Root directory. The directory given to open() or on the command line wins; change nothing
    here to open a copied store."""
    store_path_commit_log: str | None = None
    """CommitLog directories, separated by multiPathSplitter; unset is `<root>/commitlog`. Set it to
    spread the log over disks."""
    read_only_commit_log_store_paths: str | None = None
    """Further CommitLog directories that are read and never written."""
    multi_path_splitter: Annotated[str, Option(ours=True)] = ","
    """Separator in the two lists above (JVM property rocketmq.broker.multiPathSplitter). Change it
    when a path contains a comma."""
    store_host: Annotated[str, Option(ours=True)] = "127.0.0.1:10911"
    """Address of this store, part of every message id; `ip:port` or `[v6]:port`. Where it is unset,
    brokerIP1 and listenPort of broker.conf give it."""

    # --- sizes of files -------------------------------------------------------------------------
    mapped_file_size_commit_log: Annotated[int | None, Option("bytes", LEAST_LOG_FILE_BYTES)] = None
    """Length of a CommitLog file; unset is learnt from the files, else 1 GiB. A smaller size saves
    disk in a small store. Cannot be changed later."""
    mapped_file_size_consume_queue: Annotated[int | None, Option("bytes", 20)] = None
    """Length of a ConsumeQueue file, rounded up to a multiple of 20; unset is learnt, else
    6,000,000 (300,000 entries). Less with many small queues."""
    mapped_file_size_batch_queue: Annotated[int | None, Option("bytes", 46, ours=True)] = None
    """Length of a file of a batch queue (5.x), rounded up to a multiple of 46; unset is learnt,
    else it has as many entries as a ConsumeQueue file."""
    max_hash_slot_num: Annotated[int | None, Option("count", 1)] = None
    """Slots of an index file; unset is learnt (1 slot to 4 items), else 5,000,000."""
    max_index_num: Annotated[int | None, Option("count", 2)] = None
    """Items of an index file, one unused; unset is learnt from the files, else 20,000,000."""

    # --- limits ---------------------------------------------------------------------------------
    max_message_size: Annotated[int, Option("bytes", 10)] = 4 * MiB
    """Longest body; a record may be 64 KiB longer (4.9.8's rule). Raise it for larger messages, as
    far as a CommitLog file holds one."""
    os_page_cache_busy_time_out_mills: Annotated[int, Option("ms", 1)] = 1000
    """A put that finds the append lock held for longer is refused with OS_PAGECACHE_BUSY."""
    sync_flush_timeout: Annotated[int, Option("ms", 1)] = 5000
    """Longest wait of a SYNC_FLUSH put for its flush, then FLUSH_DISK_TIMEOUT."""

    # --- durability -----------------------------------------------------------------------------
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """SYNC_FLUSH acknowledges after fdatasync; ASYNC_FLUSH when the message is in the page cache.
    SYNC_FLUSH where a power loss may lose nothing; costs one sync per group."""
    flush_interval_commit_log: Annotated[int, Option("ms", 1)] = 500
    """Period of the asynchronous CommitLog flush."""
    flush_commit_log_timed: bool = True
    """True flushes by the clock only; false also when woken by a put."""
    flush_commit_log_least_pages: Annotated[int, Option("pages", 0)] = 4
    """Pages of 4 KiB that must be new for an asynchronous flush to happen."""
    flush_commit_log_thorough_interval: Annotated[int, Option("ms", 0)] = 10_000
    """After this time everything is flushed, however little."""
    flush_interval_consume_queue: Annotated[int, Option("ms", 1)] = 1000
    """Period of the ConsumeQueue flush."""
    flush_consume_queue_least_pages: Annotated[int, Option("pages", 0)] = 2
    """Pages that must be new for a ConsumeQueue flush."""
    flush_consume_queue_thorough_interval: Annotated[int, Option("ms", 0)] = 60_000
    """After this time every queue is flushed and the checkpoint moves; less shortens the restart
    after a crash."""

    # --- performance ----------------------------------------------------------------------------
    transient_store_pool_enable: bool = False
    """Put into memory first: even latency beside a busy disk; a kill loses some. ASYNC_FLUSH."""
    transient_store_pool_size: Annotated[int, Option("count", 1, 1024)] = 5
    """Buffers of that pool, each of a file's size; more where the disk lags behind for long."""
    transient_store_pool_lock: Annotated[bool, Option(ours=True)] = False
    """Take the pool's memory at once and lock it, as 4.9 does, where `ulimit -l` allows it."""
    fast_fail_if_no_buffer_in_store_pool: bool = False
    """Refuse a put that needs a new file while no buffer is free (CREATE_MAPEDFILE_FAILED)."""
    commit_interval_commit_log: Annotated[int, Option("ms", 1)] = 200
    """Longest time that a message is in the pool only."""
    commit_commit_log_least_pages: Annotated[int, Option("pages", 0)] = 4
    """Pages of 4 KiB that must be new to be committed before that."""
    commit_commit_log_thorough_interval: Annotated[int, Option("ms", 0)] = 200
    """After this time the next put is committed at once, however little."""
    warm_mapped_file_enable: bool = False
    """Touch every page of a new CommitLog file before it is used: even latency for one more write
    of the file."""
    flush_least_pages_when_warm_mapped_file: Annotated[int, Option("pages", 1)] = 4096
    """Pages between two flushes while warming."""

    # --- reading --------------------------------------------------------------------------------
    max_transfer_bytes_on_message_in_memory: Annotated[int, Option("bytes", 1)] = 262_144
    """Most bytes one get returns of recent messages."""
    max_transfer_count_on_message_in_memory: Annotated[int, Option("count", 1)] = 32
    """Most recent messages one get returns."""
    max_transfer_bytes_on_message_in_disk: Annotated[int, Option("bytes", 1)] = 65_536
    """Most bytes one get returns of older messages."""
    max_transfer_count_on_message_in_disk: Annotated[int, Option("count", 1)] = 8
    """Most older messages one get returns."""
    access_message_in_memory_max_ratio: Annotated[int, Option("%", 0, 100)] = 40
    """Share of the machine's memory that counts as recent, back from the log's end."""

    # --- index ----------------------------------------------------------------------------------
    message_index_enable: bool = True
    """Index messages by key; false saves disk: new messages are not found."""
    max_msgs_num_batch: Annotated[int, Option("count", 1)] = 64
    """Messages that one find returns by default."""
    message_index_safe: bool = False
    """Let recovery start where the index is complete, as salvage always does."""

    # --- recovery -------------------------------------------------------------------------------
    recovery_policy: Annotated[RecoveryPolicy, Option(ours=True)] = RecoveryPolicy.SALVAGE
    """salvage keeps every intact message; compatible ends where 4.9.3 ends."""
    check_crc_on_recover: bool = True
    """Compare each body with its CRC while recovering."""
    scrub_bytes_per_second: Annotated[int, Option("bytes/s", 0, ours=True)] = 0
    """How much of the CommitLog files that are no longer written an open store checks in the
    background, over and over; damage is logged and counted. 0 checks nothing."""
    scrub_pause_above: Annotated[int, Option("messages/s", 0, ours=True)] = 10_000
    """That check pauses while more messages than this are put and got a second (over 10 s)."""

    # --- retention ------------------------------------------------------------------------------
    retention: Annotated[bool, Option(ours=True)] = False
    """True deletes old files by the rules below; false deletes none, however old they are or full
    the disk is. Off unless set; a broker.conf that is given sets it."""
    delete_when: Annotated[str, Option("hours")] = "04"
    """Hours of the day in which old files are deleted, separated by `;`."""
    file_reserved_time: Annotated[int, Option("hours", 0)] = 72
    """Age at which a CommitLog file may be deleted."""
    clean_file_forcibly_enable: bool = True
    """On a nearly full disk delete files before their time."""
    disk_max_used_space_ratio: Annotated[int, Option("%")] = 75
    """Fuller than this, old files are deleted at any hour; values are taken as 10 to 95."""
    disk_space_clean_forcibly_ratio: Annotated[float, Option("ratio", 0, 1, ours=True)] = 0.85
    """Fuller than this, files are deleted before their time (JVM property
    rocketmq.broker.diskSpaceCleanForciblyRatio)."""
    disk_space_warning_level_ratio: Annotated[float, Option("ratio", 0, 1, ours=True)] = 0.90
    """Fuller than this, puts are refused (JVM property
    rocketmq.broker.diskSpaceWarningLevelRatio)."""
    clean_resource_interval: Annotated[int, Option("ms", 1)] = 10_000
    """Period of the clean-up."""
    delete_commit_log_files_interval: Annotated[int, Option("ms", 0)] = 100
    """Pause between two deletions of CommitLog files."""
    delete_consume_queue_files_interval: Annotated[int, Option("ms", 0)] = 100
    """Pause between two deletions of queue files."""
    delete_file_batch_max: Annotated[int, Option("count", 1, ours=True)] = 10
    """Most CommitLog files deleted in one clean-up (a constant in 4.9, an option in 5.x)."""
    destroy_mapped_file_interval_forcibly: Annotated[int, Option("ms", 0)] = 120_000
    """How long a deleted file waits for its readers."""
    redelete_hanged_file_interval: Annotated[int, Option("ms", 0)] = 120_000
    """Pause before a hung deletion is tried again."""

    # --- memory topics --------------------------------------------------------------------------
    memory_topic_enable: Annotated[bool, Option(ours=True)] = False
    """Keep messages of topics that topics.json marks with memory in memory and in no file: lost
    when the store is closed."""
    memory_topic_max_bytes: Annotated[int, Option("bytes", 0, 2**62, ours=True)] = 0
    """Most memory that they take; 0 is 75 % of what is available when the store is opened."""
