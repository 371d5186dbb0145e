"""Options of 4.9 for parts that are still to come: known, checked, and most without effect so far.

They are kept apart because they belong to parts that come later (delay, replication, extensions);
an option moves into `StoreConfig` when its part works.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from rocketstore.config.option import BrokerRole, Group, Option, broker_conf_key

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_G = Group


class LaterOptions(msgspec.Struct, frozen=True, kw_only=True, rename=broker_conf_key):
    """Base of `StoreConfig`."""

    enable_consume_queue_ext: Annotated[
        bool, Option(_G.LATER, "Write ConsumeQueue extension files.")
    ] = False
    bit_map_length_consume_queue_ext: Annotated[
        int, Option(_G.LATER, "Bits of a filter map in an extension unit.", "bits", 0)
    ] = 64
    transient_store_pool_enable: Annotated[
        bool, Option(_G.LATER, "Write into memory first, commit to the file later.")
    ] = False
    transient_store_pool_size: Annotated[
        int, Option(_G.LATER, "Buffers of that pool.", "count", 1)
    ] = 5
    fast_fail_if_no_buffer_in_store_pool: Annotated[
        bool, Option(_G.LATER, "Refuse puts when that pool is used up.")
    ] = False
    commit_interval_commit_log: Annotated[
        int, Option(_G.LATER, "Period of the pool's commit.", "ms", 1)
    ] = 200
    commit_commit_log_least_pages: Annotated[
        int, Option(_G.LATER, "Pages that must be new for a commit.", "pages", 0)
    ] = 4
    commit_commit_log_thorough_interval: Annotated[
        int, Option(_G.LATER, "After this time everything is committed.", "ms", 0)
    ] = 200
    disk_fall_recorded: Annotated[
        bool, Option(_G.LATER, "Count how far behind the log's end each get was.")
    ] = True
    default_query_max_num: Annotated[
        int,
        Option(_G.LATER, "Most messages of a query by unique key at a broker.", "count", 1),
    ] = 32
    message_delay_level: Annotated[
        str, Option(_G.LATER, "Delays of the levels 1, 2, …: numbers with s, m, h or d.")
    ] = DEFAULT_DELAY_LEVELS
    flush_delay_offset_interval: Annotated[
        int, Option(_G.LATER, "Period in which delay offsets are saved.", "ms", 1, 2**63 - 1)
    ] = 10_000
    enable_schedule_message_stats: Annotated[bool, Option(_G.LATER, "Count delayed messages.")] = (
        True
    )
    enable_schedule_async_deliver: Annotated[
        bool, Option(_G.LATER, "Deliver delayed messages without waiting for each put.")
    ] = False
    schedule_async_deliver_max_pending_limit: Annotated[
        int, Option(_G.LATER, "Most deliveries under way.", "count", 1)
    ] = 2000
    schedule_async_deliver_max_resend_num2_blocked: Annotated[
        int, Option(_G.LATER, "Failed deliveries before a level waits.", "count", 0)
    ] = 3
    enable_multi_dispatch: Annotated[
        bool, Option(_G.LATER, "Dispatch a message to further queues.")
    ] = False
    enable_lmq: Annotated[bool, Option(_G.LATER, "Light message queues.")] = False
    max_lmq_consume_queue_num: Annotated[
        int, Option(_G.LATER, "Most light queues.", "count", 0)
    ] = 20_000
    broker_role: Annotated[
        BrokerRole,
        Option(
            _G.LATER,
            "Part in replication; a SLAVE refuses puts of its own, a SYNC_MASTER says of each put "
            "that no replica has it.",
        ),
    ] = BrokerRole.ASYNC_MASTER
    slave_timeout: Annotated[
        int, Option(_G.LATER, "Longest wait of a SYNC_MASTER put for its slave.", "ms", 1)
    ] = 3000
    ha_listen_port: Annotated[int, Option(_G.LATER, "Port of replication.", "-", 0, 65_535)] = (
        10_912
    )
    ha_send_heartbeat_interval: Annotated[
        int, Option(_G.LATER, "Period of replication's heartbeat.", "ms", 1)
    ] = 5000
    ha_housekeeping_interval: Annotated[
        int, Option(_G.LATER, "Silence after which a replica is dropped.", "ms", 1)
    ] = 20_000
    ha_transfer_batch_size: Annotated[
        int, Option(_G.LATER, "Most bytes sent to a replica at once.", "bytes", 1)
    ] = 32_768
    ha_master_address: Annotated[str | None, Option(_G.LATER, "Where a slave reads.")] = None
    ha_slave_fallbehind_max: Annotated[
        int, Option(_G.LATER, "Lag from which a slave does not count.", "bytes", 0)
    ] = 268_435_456
    offset_check_in_slave: Annotated[
        bool, Option(_G.LATER, "A slave corrects offsets of a get as a master does.")
    ] = False
    duplication_enable: Annotated[
        bool, Option(_G.LATER, "Dispatch only what replicas confirmed.")
    ] = False
    debug_lock_enable: Annotated[
        bool, Option(_G.LATER, "Write a thread dump when the append lock is held for long.")
    ] = False
    put_msg_index_high_water: Annotated[
        int, Option(_G.LATER, "Unused in 4.9 as well.", "count", 0)
    ] = 600_000
    enable_d_ledger_commit_log: Annotated[
        bool, Option(_G.LATER, "Raft log; true is refused, because its files are others.")
    ] = False
