"""The options of a store: those of 4.9's ``broker.conf`` under correct names, and a few of ours.

A field's name is the snake case of its ``broker.conf`` key. Some keys are misspelt there
(``destroyMapedFileIntervalForcibly``); the misspelling lives in `option` and nowhere else.

Law: a `StoreConfig` that exists is within its limits. Sizes that are None are learnt from the files
of an existing store (`rocketstore.config.sizes`), else they are Java's defaults.
Page: docs/reference/configuration.md. Source: rocketmq-all-4.9.8, MessageStoreConfig.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Annotated, Any, Final

import msgspec

from rocketstore.config.option import (
    BrokerRole,
    FieldSpec,
    FlushDiskType,
    Group,
    Option,
    RecoveryPolicy,
    broker_conf_key,
    check_value,
    parameters_help,
)
from rocketstore.config.values import check_host, parse_delay_levels, parse_delete_hours
from rocketstore.errors import ConfigError
from rocketstore.units import KiB, MiB

_G = Group

SMALL_SIZES: Final[dict[str, Any]] = {
    # Whole pages, with room for 4.9.8's longest record (4 MiB and 64 KiB) and a BLANK after it.
    "mapped_file_size_commit_log": 4 * MiB + 68 * KiB,
    "mapped_file_size_consume_queue": 20 * KiB,
    "max_hash_slot_num": 2_500,
    "max_index_num": 10_000,
}
"""Sizes of `StoreConfig.small`, by field."""


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, rename=broker_conf_key):
    """Everything that can be set about a store.

    The same text, with units and limits, is in ``docs/reference/configuration.md`` and in
    ``rocketstore config show``. A value of the wrong type or outside its limits is a `ConfigError`.
    """

    # --- where files lie ------------------------------------------------------------------------
    store_path_root_dir: Annotated[
        str | None,
        Option(
            _G.PLACE,
            "Root directory. The directory given to open() or on the command line wins; change "
            "nothing here to open a copied store.",
        ),
    ] = None
    store_path_commit_log: Annotated[
        str | None,
        Option(
            _G.PLACE,
            "CommitLog directories, separated by multiPathSplitter; unset is `<root>/commitlog`. "
            "Set it to spread the log over disks.",
        ),
    ] = None
    read_only_commit_log_store_paths: Annotated[
        str | None,
        Option(_G.PLACE, "Further CommitLog directories that are read and never written."),
    ] = None
    multi_path_splitter: Annotated[
        str,
        Option(
            _G.PLACE,
            "Separator in the two lists above (JVM property rocketmq.broker.multiPathSplitter). "
            "Change it when a path contains a comma.",
            ours=True,
        ),
    ] = ","
    store_host: Annotated[
        str,
        Option(
            _G.PLACE,
            "Address of this store, part of every message id; `ip:port` or `[v6]:port`. Where it "
            "is unset, brokerIP1 and listenPort of broker.conf give it.",
            ours=True,
        ),
    ] = "127.0.0.1:10911"

    # --- sizes of files -------------------------------------------------------------------------
    mapped_file_size_commit_log: Annotated[
        int | None,
        Option(
            _G.SIZE,
            "Length of a CommitLog file; unset is learnt from the files, else 1 GiB. A small store "
            "takes less disk with less. Cannot be changed later.",
            "bytes",
            128,
        ),
    ] = None
    mapped_file_size_consume_queue: Annotated[
        int | None,
        Option(
            _G.SIZE,
            "Length of a ConsumeQueue file, rounded up to a multiple of 20; unset is learnt, else "
            "6,000,000 (300,000 entries). Less with many small queues.",
            "bytes",
            20,
        ),
    ] = None
    max_hash_slot_num: Annotated[
        int | None,
        Option(
            _G.SIZE,
            "Slots of an index file; unset is learnt from the files (1 slot to 4 items), else "
            "5,000,000.",
            "count",
            1,
        ),
    ] = None
    max_index_num: Annotated[
        int | None,
        Option(
            _G.SIZE,
            "Items of an index file, one of them unused; unset is learnt from the files, else "
            "20,000,000.",
            "count",
            2,
        ),
    ] = None

    # --- limits ---------------------------------------------------------------------------------
    max_message_size: Annotated[
        int,
        Option(
            _G.LIMIT,
            "Longest body; a record may be 64 KiB longer (4.9.8's rule). Raise it for larger "
            "messages, as far as a CommitLog file holds one.",
            "bytes",
            10,
        ),
    ] = 4 * MiB
    os_page_cache_busy_time_out_mills: Annotated[
        int,
        Option(
            _G.LIMIT,
            "A put that finds the append lock held for longer is refused with OS_PAGECACHE_BUSY.",
            "ms",
            1,
        ),
    ] = 1000
    sync_flush_timeout: Annotated[
        int,
        Option(
            _G.LIMIT,
            "Longest wait of a SYNC_FLUSH put for its flush, then FLUSH_DISK_TIMEOUT.",
            "ms",
            1,
        ),
    ] = 5000

    # --- durability -----------------------------------------------------------------------------
    flush_disk_type: Annotated[
        FlushDiskType,
        Option(
            _G.DURABILITY,
            "SYNC_FLUSH acknowledges after fdatasync; ASYNC_FLUSH when the message is in the page "
            "cache. SYNC_FLUSH where a power loss may lose nothing; costs one sync per group.",
        ),
    ] = FlushDiskType.ASYNC_FLUSH
    flush_interval_commit_log: Annotated[
        int,
        Option(_G.DURABILITY, "Period of the asynchronous CommitLog flush.", "ms", 1),
    ] = 500
    flush_commit_log_timed: Annotated[
        bool,
        Option(_G.DURABILITY, "True flushes by the clock only; false also when woken by a put."),
    ] = True
    flush_commit_log_least_pages: Annotated[
        int,
        Option(
            _G.DURABILITY,
            "Pages of 4 KiB that must be new for an asynchronous flush to happen.",
            "pages",
            0,
        ),
    ] = 4
    flush_commit_log_thorough_interval: Annotated[
        int,
        Option(_G.DURABILITY, "After this time everything is flushed, however little.", "ms", 0),
    ] = 10_000
    flush_interval_consume_queue: Annotated[
        int, Option(_G.DURABILITY, "Period of the ConsumeQueue flush.", "ms", 1)
    ] = 1000
    flush_consume_queue_least_pages: Annotated[
        int,
        Option(_G.DURABILITY, "Pages that must be new for a ConsumeQueue flush.", "pages", 0),
    ] = 2
    flush_consume_queue_thorough_interval: Annotated[
        int,
        Option(
            _G.DURABILITY,
            "After this time every queue is flushed and the checkpoint moves; less shortens the "
            "restart after a crash.",
            "ms",
            0,
        ),
    ] = 60_000

    # --- performance ----------------------------------------------------------------------------
    warm_mapped_file_enable: Annotated[
        bool,
        Option(
            _G.PERFORMANCE,
            "Touch every page of a new CommitLog file before it is used: even latency for one "
            "more write of the file.",
        ),
    ] = False
    flush_least_pages_when_warm_mapped_file: Annotated[
        int, Option(_G.PERFORMANCE, "Pages between two flushes while warming.", "pages", 1)
    ] = 4096

    # --- reading --------------------------------------------------------------------------------
    max_transfer_bytes_on_message_in_memory: Annotated[
        int, Option(_G.READING, "Most bytes one get returns of recent messages.", "bytes", 1)
    ] = 262_144
    max_transfer_count_on_message_in_memory: Annotated[
        int, Option(_G.READING, "Most recent messages one get returns.", "count", 1)
    ] = 32
    max_transfer_bytes_on_message_in_disk: Annotated[
        int, Option(_G.READING, "Most bytes one get returns of older messages.", "bytes", 1)
    ] = 65_536
    max_transfer_count_on_message_in_disk: Annotated[
        int, Option(_G.READING, "Most older messages one get returns.", "count", 1)
    ] = 8
    access_message_in_memory_max_ratio: Annotated[
        int,
        Option(
            _G.READING,
            "Share of the machine's memory that counts as recent, back from the log's end.",
            "%",
            0,
            100,
        ),
    ] = 40

    # --- index ----------------------------------------------------------------------------------
    message_index_enable: Annotated[
        bool,
        Option(_G.INDEX, "Index messages by key; false saves disk: new messages are not found."),
    ] = True
    max_msgs_num_batch: Annotated[
        int, Option(_G.INDEX, "Messages that one find returns by default.", "count", 1)
    ] = 64
    message_index_safe: Annotated[
        bool,
        Option(
            _G.INDEX,
            "Let recovery start where the index is complete. This store always does, so it has "
            "no effect.",
        ),
    ] = False

    # --- recovery -------------------------------------------------------------------------------
    recovery_policy: Annotated[
        RecoveryPolicy,
        Option(
            _G.RECOVERY,
            "salvage keeps every intact message; compatible ends where 4.9.3 ends.",
            ours=True,
        ),
    ] = RecoveryPolicy.SALVAGE
    check_crc_on_recover: Annotated[
        bool,
        Option(_G.RECOVERY, "Compare each body with its CRC while recovering."),
    ] = True

    scrub_bytes_per_second: Annotated[
        int,
        Option(
            _G.RECOVERY,
            "How much of the CommitLog files that are no longer written an open store checks in "
            "the background, over and over; damage is logged and counted. 0 checks nothing.",
            "bytes/s",
            0,
            ours=True,
        ),
    ] = 0

    # --- retention ------------------------------------------------------------------------------
    retention: Annotated[
        bool,
        Option(
            _G.RETENTION,
            "True deletes old files by the rules below, false none, whatever its age and however "
            "full the disk. Off unless set; a broker.conf that is given sets it.",
            ours=True,
        ),
    ] = False
    delete_when: Annotated[
        str,
        Option(_G.RETENTION, "Hours of the day in which old files go, separated by `;`.", "hours"),
    ] = "04"
    file_reserved_time: Annotated[
        int, Option(_G.RETENTION, "Age at which a CommitLog file may be deleted.", "hours", 0)
    ] = 72
    clean_file_forcibly_enable: Annotated[
        bool,
        Option(_G.RETENTION, "On a nearly full disk delete files before their time."),
    ] = True
    disk_max_used_space_ratio: Annotated[
        int,
        Option(
            _G.RETENTION,
            "Fuller than this, old files go at any hour; values are taken as 10 to 95.",
            "%",
            None,
        ),
    ] = 75
    disk_space_clean_forcibly_ratio: Annotated[
        float,
        Option(
            _G.RETENTION,
            "Fuller than this, files go before their time (JVM property "
            "rocketmq.broker.diskSpaceCleanForciblyRatio).",
            "ratio",
            0,
            1,
            ours=True,
        ),
    ] = 0.85
    disk_space_warning_level_ratio: Annotated[
        float,
        Option(
            _G.RETENTION,
            "Fuller than this, puts are refused (JVM property "
            "rocketmq.broker.diskSpaceWarningLevelRatio).",
            "ratio",
            0,
            1,
            ours=True,
        ),
    ] = 0.90
    clean_resource_interval: Annotated[
        int, Option(_G.RETENTION, "Period of the clean-up.", "ms", 1)
    ] = 10_000
    delete_commit_log_files_interval: Annotated[
        int, Option(_G.RETENTION, "Pause between two deletions of CommitLog files.", "ms", 0)
    ] = 100
    delete_consume_queue_files_interval: Annotated[
        int, Option(_G.RETENTION, "Pause between two deletions of queue files.", "ms", 0)
    ] = 100
    delete_file_batch_max: Annotated[
        int,
        Option(
            _G.RETENTION,
            "Most CommitLog files deleted in one clean-up (a constant in 4.9, an option in 5.x).",
            "count",
            1,
            ours=True,
        ),
    ] = 10
    destroy_mapped_file_interval_forcibly: Annotated[
        int,
        Option(_G.RETENTION, "How long a deleted file waits for its readers.", "ms", 0),
    ] = 120_000
    redelete_hanged_file_interval: Annotated[
        int, Option(_G.RETENTION, "Pause before a hung deletion is tried again.", "ms", 0)
    ] = 120_000

    # --- delays, further queues and roles -------------------------------------------------------
    message_delay_level: Annotated[
        str,
        Option(
            _G.QUEUES,
            "Delays of the levels 1, 2, …: numbers with s, m, h or d. They give the tags code of "
            "delayed messages in queue entries.",
        ),
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    enable_multi_dispatch: Annotated[
        bool, Option(_G.QUEUES, "Dispatch a message to the further queues that it names.")
    ] = False
    enable_lmq: Annotated[
        bool, Option(_G.QUEUES, "Let such further queues be light ones, which have one queue each.")
    ] = False
    broker_role: Annotated[
        BrokerRole,
        Option(
            _G.QUEUES,
            "Part in replication; a SLAVE refuses puts of its own, a SYNC_MASTER says of each put "
            "that no replica has it.",
        ),
    ] = BrokerRole.ASYNC_MASTER
    enable_d_ledger_commit_log: Annotated[
        bool, Option(_G.QUEUES, "Raft log; true is refused, because its files are others.")
    ] = False

    @classmethod
    def small(cls, **settings: Any) -> StoreConfig:
        """Return settings of a small store: less than 5 MB of disk, for tests and tools.

        Files begin at 4.2 MB instead of 1 GiB for the log, 20 KB instead of 6 MB for each queue,
        and 210 KB instead of 420 MB for the index. They hold every message that the defaults hold,
        as many of them as you like. An existing store shows the profile by its files, so any later
        open may leave it out; a broker of 4.9 has to be given these sizes in its ``broker.conf``.

        Parameters
        ----------
        settings
            Any other field of `StoreConfig`; a size given here wins.

        Examples
        --------
        >>> StoreConfig.small(max_msgs_num_batch=10).max_index_num
        10000
        """
        return cls(**{**SMALL_SIZES, **settings})

    def __post_init__(self) -> None:
        """Check every value, because a frozen value cannot be checked later."""
        for field, spec in FIELDS.items():
            check_value(field, getattr(self, field), spec)
        check_host(self.store_host)
        parse_delete_hours(self.delete_when)
        parse_delay_levels(self.message_delay_level)
        if not self.multi_path_splitter:
            raise ConfigError("multiPathSplitter is empty", key="multiPathSplitter", value="")
        if self.enable_d_ledger_commit_log:
            raise ConfigError(
                "enableDLegerCommitLog=true: a Raft CommitLog has another format",
                key="enableDLegerCommitLog",
                value=True,
                hint="open stores of a broker without DLedger",
            )

    @property
    def disk_max_used_space_percent(self) -> int:
        """``disk_max_used_space_ratio`` as it is used: clamped to 10 to 95.

        Notes
        -----
        Source: MessageStoreConfig.getDiskMaxUsedSpaceRatio.
        """
        return min(max(self.disk_max_used_space_ratio, 10), 95)

    @property
    def max_record_size(self) -> int:
        """Longest whole record: the body's limit and 64 KiB, at most a signed 32-bit number.

        Notes
        -----
        Source: MessageExtEncoder of 4.9.8 (``maxMessageSize + 64 KiB`` for the buffer).
        """
        return min(self.max_message_size + 65_536, 2**31 - 1)

    @property
    def is_sync_flush(self) -> bool:
        """Whether a put waits for fdatasync."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH


def _field_specs() -> dict[str, FieldSpec]:
    hints = typing.get_type_hints(StoreConfig, include_extras=True)
    specs = {}
    for info in msgspec.structs.fields(StoreConfig):
        kind, option = typing.get_args(hints[info.name])
        nullable = isinstance(kind, types.UnionType)
        if nullable:
            (kind,) = (member for member in typing.get_args(kind) if member is not types.NoneType)
        specs[info.name] = FieldSpec(info.encode_name, kind, nullable, option, info.default)
    order = list(Group)
    return dict(sorted(specs.items(), key=lambda item: order.index(item[1].option.group)))


FIELDS: Final[dict[str, FieldSpec]] = _field_specs()
"""Every field of `StoreConfig`, by group."""


def _make_help_readable() -> None:
    """Let ``help(StoreConfig)`` show plain types, and what each field is; facts are in `FIELDS`."""
    StoreConfig.__annotations__ = typing.get_type_hints(StoreConfig)
    if StoreConfig.__doc__ is not None:  # as with python -OO
        StoreConfig.__doc__ = f"{StoreConfig.__doc__.rstrip()}\n\n{parameters_help(FIELDS)}\n    "


_make_help_readable()

FIELD_OF_KEY: Final = {spec.key: field for field, spec in FIELDS.items()}


@functools.cache
def option_of(field: str) -> Option:
    """Return the facts about a field of `StoreConfig`."""
    return FIELDS[field].option
