"""The options of a store: those of 4.9's ``broker.conf`` under correct names, and a few of ours.

A field's name is the snake case of its ``broker.conf`` key. Its annotation holds unit and limits,
the text below it says what it does and when to change it: `FIELDS` is that one table, which the
range checks, the parser of ``broker.conf``, ``help`` and the documentation's test read.

Law: a `StoreConfig` that exists is within its limits. Sizes that are None are learnt from the files
of an existing store (`rocketstore.config.files`), else they are Java's defaults.
Page: docs/reference/configuration.md. Source: rocketmq-all-4.9.8, MessageStoreConfig.
"""

from __future__ import annotations

import enum
import linecache
import re
import types
import typing
from math import inf
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from rocketstore.config.grammars import parse_delay_levels, parse_delete_hours
from rocketstore.errors import ConfigError, FormatError
from rocketstore.format.host import encode_host
from rocketstore.units import KiB, MiB

INT32_MAX: Final = 2**31 - 1

SMALL_SIZES: Final[dict[str, Any]] = {
    # Whole pages, with room for 4.9.8's longest record (4 MiB and 64 KiB) and a BLANK after it.
    "mapped_file_size_commit_log": 4 * MiB + 68 * KiB,
    "mapped_file_size_consume_queue": 20 * KiB,
    "max_hash_slot_num": 2_500,
    "max_index_num": 10_000,
}
"""Sizes of `StoreConfig.small`, by field."""

_MISSPELT: Final = {
    "mapped_file_size_batch_queue": "mapperFileSizeBatchConsumeQueue",
    "destroy_mapped_file_interval_forcibly": "destroyMapedFileIntervalForcibly",
    "warm_mapped_file_enable": "warmMapedFileEnable",
    "flush_least_pages_when_warm_mapped_file": "flushLeastPagesWhenWarmMapedFile",
    "check_crc_on_recover": "checkCRCOnRecover",
    "enable_d_ledger_commit_log": "enableDLegerCommitLog",
}
"""Fields whose key is not simply their name in camel case."""


def broker_conf_key(field: str) -> str:
    """Return the ``broker.conf`` key of a field of `StoreConfig`.

    >>> broker_conf_key("flush_disk_type"), broker_conf_key("warm_mapped_file_enable")
    ('flushDiskType', 'warmMapedFileEnable')
    """
    first, *rest = field.split("_")
    return _MISSPELT.get(field) or first + "".join(part.capitalize() for part in rest)


class FlushDiskType(enum.Enum):
    """When a put is acknowledged."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.Enum):
    """The store's part in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class RecoveryPolicy(enum.Enum):
    """What an open after a crash keeps."""

    SALVAGE = "salvage"
    COMPATIBLE = "compatible"


class Option(NamedTuple):
    """Unit and inclusive limits of an option, and whether 4.9's ``broker.conf`` has no such key."""

    unit: str = "-"
    low: float | None = None
    high: float = INT32_MAX
    ours: bool = False


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, rename=broker_conf_key):
    """Everything that can be set about a store.

    The same text, with units and limits, is in ``docs/reference/configuration.md``. A value of the
    wrong type or outside its limits is a `ConfigError`.
    """

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
    mapped_file_size_commit_log: Annotated[int | None, Option("bytes", 128)] = None
    """Length of a CommitLog file; unset is learnt from the files, else 1 GiB. A small store takes
    less disk with less. Cannot be changed later."""
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
    """Hours of the day in which old files go, separated by `;`."""
    file_reserved_time: Annotated[int, Option("hours", 0)] = 72
    """Age at which a CommitLog file may be deleted."""
    clean_file_forcibly_enable: bool = True
    """On a nearly full disk delete files before their time."""
    disk_max_used_space_ratio: Annotated[int, Option("%")] = 75
    """Fuller than this, old files go at any hour; values are taken as 10 to 95."""
    disk_space_clean_forcibly_ratio: Annotated[float, Option("ratio", 0, 1, ours=True)] = 0.85
    """Fuller than this, files go before their time (JVM property
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

    # --- metrics --------------------------------------------------------------------------------
    metrics_port: Annotated[int, Option("-", 0, 65_535, ours=True)] = 0
    """Port on which an open store serves its numbers to Prometheus; 0 serves none."""
    metrics_host: Annotated[str, Option(ours=True)] = "127.0.0.1"
    """Address of that port; this machine's own unless set. 0.0.0.0 is every address."""

    # --- delays, further queues and roles -------------------------------------------------------
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delays of the levels 1, 2, …: numbers with s, m, h or d. They give the tags code of delayed
    messages in queue entries."""
    flush_delay_offset_interval: Annotated[int, Option("ms", 1)] = 10_000
    """How often it is written down how far delayed messages are delivered."""
    flush_consumer_offset_interval: Annotated[int, Option("ms", 1)] = 5_000
    """How often it is written down how far groups are: so much is consumed again after a kill."""
    transaction_check_interval: Annotated[int, Option("ms", 1)] = 60_000
    """Pause between two checks of open transactions."""
    transaction_time_out: Annotated[int, Option("ms", 0)] = 6_000
    """How long a half message is left to its producer before it is checked."""
    transaction_check_max: Annotated[int, Option("count", 0)] = 15
    """How often a producer is asked about a half message before it is discarded."""
    enable_multi_dispatch: bool = False
    """Take messages for further queues, which they name. What is in the log goes there anyway."""
    enable_lmq: bool = False
    """Let such further queues be light ones, which have one queue each."""
    max_lmq_consume_queue_num: Annotated[int, Option("count", 0)] = 20_000
    """Most light queues that puts make."""
    enable_consume_queue_ext: bool = False
    """Keep tags, store time and bit map of each queue entry in a file beside the queue, as SQL
    filters of 4.9 need it."""
    mapped_file_size_consume_queue_ext: Annotated[int | None, Option("bytes", 64)] = None
    """Length of such a file; unset is learnt from the files, else 48 MiB."""
    enable_calc_filter_bit_map: bool = False
    """Keep there for which consumers' filters a message is; needs enableConsumeQueueExt."""
    expect_consumer_num_use_filter: Annotated[int, Option("count", 1, 100_000)] = 32
    """Consumers with a filter that a bit map is made for; with more it excludes less."""
    max_error_rate_of_bloom_filter: Annotated[int, Option("%", 1, 99)] = 20
    """How often a bit map may name a consumer that does not want the message."""
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    """Part in replication; a SLAVE refuses puts of its own, those of a SYNC_MASTER wait for
    replicas."""
    ha_listen_port: Annotated[int | None, Option("port", 0, 65535)] = None
    """Where a master listens for slaves; unset it does not, 0 is any free port. 4.9's is 10912."""
    ha_listen_address: Annotated[str, Option(ours=True)] = "127.0.0.1"
    """Address that a master listens at. Whatever reaches it reads all messages: name one of a
    network you trust, or require certificates."""
    ha_master_address: str | None = None
    """Master that a SLAVE follows, `host:port`; unset it follows none."""
    ha_send_heartbeat_interval: Annotated[int, Option("ms", 1)] = 5000
    """After this long without data, master and slave send a heartbeat."""
    ha_housekeeping_interval: Annotated[int, Option("ms", 1)] = 20_000
    """After so long without a sign of the other one the connection is closed."""
    ha_transfer_batch_size: Annotated[int, Option("bytes", 1, 4 * MiB)] = 32_768
    """Most bytes of one transfer; a slave of 4.9 takes 4 MiB at most."""
    ha_slave_fallbehind_max: Annotated[int, Option("bytes", 1)] = 256 * MiB
    """A slave that lacks this much counts as absent: SLAVE_NOT_AVAILABLE."""
    offset_check_in_slave: bool = False
    """Let a SLAVE send readers back to its end; else they wait for what its master has already."""
    slave_timeout: Annotated[int, Option("ms", 1)] = 3000
    """Longest wait of a SYNC_MASTER's put for its replicas, then FLUSH_SLAVE_TIMEOUT."""
    in_sync_replicas: Annotated[int, Option("count", 1, ours=True)] = 1
    """Slaves that must have a SYNC_MASTER's message; several connections of one count once."""
    sync_from_last_file: Annotated[bool, Option(ours=True)] = False
    """An empty slave takes only what is in its master's last file, as in 4.9, not the whole log. A
    master of 4.9 sends no more in any case."""
    ha_tls_certificate: Annotated[str | None, Option(ours=True)] = None
    """PEM file with certificate and key to show; with it replication speaks TLS only."""
    ha_tls_authorities: Annotated[str | None, Option(ours=True)] = None
    """PEM file with those whose certificates are believed; each side must show one."""
    enable_d_ledger_commit_log: bool = False
    """Raft log; true is refused, because its files have another format."""

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

        >>> StoreConfig.small(max_msgs_num_batch=10).max_index_num
        10000
        """
        return cls(**{**SMALL_SIZES, **settings})

    def __post_init__(self) -> None:
        """Check every value, because a frozen value cannot be checked later."""
        for field, spec in FIELDS.items():
            if (value := getattr(self, field)) is not spec.default:
                check_value(field, value, spec)
        try:
            encode_host(self.store_host)
        except FormatError as error:
            raise ConfigError(
                f"storeHost={self.store_host}: expected ip:port or [v6]:port",
                key="storeHost",
                value=self.store_host,
                hint="where it is unset, brokerIP1 and listenPort give it",
            ) from error
        parse_delete_hours(self.delete_when)
        parse_delay_levels(self.message_delay_level)
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

        Source: MessageStoreConfig.getDiskMaxUsedSpaceRatio.
        """
        return min(max(self.disk_max_used_space_ratio, 10), 95)

    @property
    def has_transient_pool(self) -> bool:
        """Whether messages are put into a pool first (isTransientStorePoolEnable)."""
        is_slave = self.broker_role is BrokerRole.SLAVE
        return self.transient_store_pool_enable and not (self.is_sync_flush or is_slave)

    @property
    def is_sync_flush(self) -> bool:
        """Whether a put waits for fdatasync."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH


class FieldSpec(NamedTuple):
    """What the parser, the checks and the documentation need to know about a field."""

    key: str
    kind: type
    nullable: bool
    option: Option
    default: Any


def check_value(field: str, value: object, spec: FieldSpec) -> None:
    """Raise `ConfigError` where a value is empty, of another type or out of range; says which."""
    if value is None and spec.nullable:
        return
    # bool is an int for Python, and 1 is a fine float, but True is no size.
    if type(value) is not spec.kind and not (spec.kind is float and type(value) is int):
        raise ConfigError(
            f"{spec.key} ({field}) must be {kind_name(spec.kind)}, not {value!r}",
            key=spec.key,
            value=value,
            hint=f"give a {spec.kind.__name__}" if issubclass(spec.kind, enum.Enum) else None,
        )
    if isinstance(value, str) and not value.strip():
        raise ConfigError(
            f"{spec.key} has no value",
            key=spec.key,
            value=value,
            hint="remove it to have its default, or give it a value",
        )
    low, high, unit = spec.option.low, spec.option.high, spec.option.unit
    # "not" also catches NaN.
    if isinstance(value, int | float) and not (-inf if low is None else low) <= value <= high:
        raise ConfigError(
            f"{spec.key}={value} is out of range: {'' if low is None else low} to {high} "
            f"{unit}".rstrip(" -"),
            key=spec.key,
            value=value,
        )


def kind_name(kind: type) -> str:
    """Return how messages call the type of an option."""
    if issubclass(kind, enum.Enum):
        return "one of " + ", ".join(member.value for member in kind)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


def _field_specs() -> dict[str, FieldSpec]:
    annotated = typing.get_type_hints(StoreConfig, include_extras=True)
    specs = {}
    for info in msgspec.structs.fields(StoreConfig):
        kind, option = annotated[info.name], Option()
        if typing.get_origin(kind) is Annotated:
            kind, option = typing.get_args(kind)
        nullable = isinstance(kind, types.UnionType)
        if nullable:
            kind = typing.get_args(kind)[0]
        specs[info.name] = FieldSpec(info.encode_name, kind, nullable, option, info.default)
    return specs


FIELDS: Final[dict[str, FieldSpec]] = _field_specs()
"""Every field of `StoreConfig`."""

FIELD_OF_KEY: Final = {spec.key: field for field, spec in FIELDS.items()}


def field_texts() -> dict[str, str]:
    """Return the text below each field: Python drops it, so it is read from this source."""
    source = "".join(linecache.getlines(__file__, globals()))
    found = re.findall(r'^    (\w+): .*\n    """([^"]*)"""', source, re.MULTILINE)
    return {field: " ".join(text.split()) for field, text in found}


def _help() -> str:
    lines = [StoreConfig.__doc__ or "", "    Parameters", "    ----------"]
    texts = field_texts()
    for field, spec in FIELDS.items():
        default = spec.default.name if isinstance(spec.default, enum.Enum) else spec.default
        kind = spec.kind.__name__ + (" | None" if spec.nullable else "")
        lines += (f"    {field}: {kind} = {default}", f"        {texts.get(field)}")
    return "\n".join(lines)


# help() shows plain types, and what each field is; what `Annotated` adds is in `FIELDS`.
StoreConfig.__annotations__ = typing.get_type_hints(StoreConfig)
StoreConfig.__doc__ = _help()
