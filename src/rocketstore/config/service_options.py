"""The options of what works on an open store, by owner."""

import enum
from typing import Annotated

from rocketstore.config.option import Option
from rocketstore.config.store_options import StoreOptions
from rocketstore.units import MiB


class BrokerRole(enum.Enum):
    """The store's part in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class ServiceOptions(StoreOptions, frozen=True, kw_only=True):
    """Those of services, beside those of the store itself."""

    # --- rocketstore.metrics ----------------------------------------------------------------------

    metrics_port: Annotated[int, Option("-", 0, 65_535, ours=True)] = 0
    """Port on which an open store serves its numbers to Prometheus; 0 serves none."""
    metrics_host: Annotated[str, Option(ours=True)] = "127.0.0.1"
    """Address of that port; this machine's own unless set. 0.0.0.0 is every address."""

    # --- rocketstore.delay ------------------------------------------------------------------------

    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delays of the levels 1, 2, …: numbers with s, m, h or d. They give the tags code of delayed
    messages in queue entries."""
    flush_delay_offset_interval: Annotated[int, Option("ms", 1)] = 10_000
    """How often the progress of delayed messages is saved."""

    # --- rocketstore.consuming --------------------------------------------------------------------

    flush_consumer_offset_interval: Annotated[int, Option("ms", 1)] = 5_000
    """How often the offsets of groups are saved: that much is consumed again after a kill."""

    # --- rocketstore.transaction ------------------------------------------------------------------

    transaction_check_interval: Annotated[int, Option("ms", 1)] = 60_000
    """Pause between two checks of open transactions."""
    transaction_time_out: Annotated[int, Option("ms", 0)] = 6_000
    """How long a half message is left to its producer before it is checked."""
    transaction_check_max: Annotated[int, Option("count", 0)] = 15
    """How often a producer is asked about a half message before it is discarded."""

    # --- further queues of a message, and extensions of queues ------------------------------------

    enable_multi_dispatch: bool = False
    """Accept messages that name further queues. Records in the log go there in any case."""
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
    """Keep there which consumers' filters a message may match; needs enableConsumeQueueExt."""
    expect_consumer_num_use_filter: Annotated[int, Option("count", 1, 100_000)] = 32
    """Consumers with a filter that a bit map is made for; with more it excludes less."""
    max_error_rate_of_bloom_filter: Annotated[int, Option("%", 1, 99)] = 20
    """How often a bit map may name a consumer that does not want the message."""

    # --- rocketstore.replication, and the part that a store has in it -----------------------------

    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    """Part in replication; a SLAVE refuses puts of its own, those of a SYNC_MASTER wait for
    replicas."""
    ha_listen_port: Annotated[int | None, Option("port", 0, 65535)] = None
    """Where a master listens for slaves; unset it does not, 0 is any free port. 4.9's is 10912."""
    ha_listen_address: Annotated[str, Option(ours=True)] = "127.0.0.1"
    """Address that a master listens at. Every client that reaches it can read all messages: use a
    trusted network, or require certificates."""
    ha_master_address: str | None = None
    """Master that a SLAVE follows, `host:port`; unset it follows none."""
    ha_send_heartbeat_interval: Annotated[int, Option("ms", 1)] = 5000
    """After this long without data, master and slave send a heartbeat."""
    ha_housekeeping_interval: Annotated[int, Option("ms", 1)] = 20_000
    """After this long without data from the other side the connection is closed."""
    ha_transfer_batch_size: Annotated[int, Option("bytes", 1, 4 * MiB)] = 32_768
    """Most bytes of one transfer; a slave of 4.9 takes 4 MiB at most."""
    ha_slave_fallbehind_max: Annotated[int, Option("bytes", 1)] = 256 * MiB
    """A slave that lacks this much counts as absent: SLAVE_NOT_AVAILABLE."""
    offset_check_in_slave: bool = False
    """Let a SLAVE send readers back to its end; else they wait for what the master has."""
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
    """PEM file with the trusted certificate authorities; each side must show a certificate."""
