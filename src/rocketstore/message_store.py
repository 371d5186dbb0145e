"""MessageStore: the store with the services that work on it while it is open.

`storage.store.BaseStore` puts, reads, flushes and recovers. What RocketMQ's broker does on top of
its store, each a package of its own (delays, transactions, replication, …), is a row of `SERVICES`.

How derived: DefaultMessageStore.start and BrokerController of 4.9 (spec B1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from rocketstore.arguments import checked
from rocketstore.config import BrokerRole
from rocketstore.consuming.async_puts import AsyncPuts
from rocketstore.consuming.group import UNACKNOWLEDGED_LIMIT, GroupSubscription
from rocketstore.consuming.service import ConsumingService
from rocketstore.delay import DelayService
from rocketstore.errors import ConfigError
from rocketstore.metrics.endpoint import MetricsService
from rocketstore.metrics.scrub_service import ScrubService
from rocketstore.storage.store import BaseStore
from rocketstore.tables.consumer_offsets import ConsumerOffsetTable
from rocketstore.tables.positions import LogMark
from rocketstore.transaction.checks import CheckAnswer, TransactionChecks
from rocketstore.transaction.transactions import EndResult, HalfMessage, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from rocketstore.consuming.consumer import Consumer
    from rocketstore.format.stored_message import StoredMessage
    from rocketstore.message import Message
    from rocketstore.replication.master import MasterService
    from rocketstore.replication.slave import SlaveService
    from rocketstore.storage.attached import Maker
    from rocketstore.storage.opening import StoreParts
    from rocketstore.storage.queues.consumer_filters import ConsumerFilters
    from rocketstore.storage.results import PutResult
    from rocketstore.storage.topics_of_kind import TopicsOfKind


def _delays(store: BaseStore) -> DelayService | None:
    return None if store.config.broker_role is BrokerRole.SLAVE else DelayService(store)


def _replication(store: BaseStore) -> MasterService | SlaveService | None:
    """Make the part that the settings ask for; most settings ask for none, and import nothing."""
    config = store.config
    if config.follows_master:
        from rocketstore.replication.slave import SlaveService  # noqa: PLC0415

        return SlaveService(store)
    if config.broker_role is not BrokerRole.SLAVE and config.ha_listen_port is not None:
        from rocketstore.replication.master import MasterService  # noqa: PLC0415

        return MasterService(store)
    return None


SERVICES: Final[tuple[Maker, ...]] = (
    LogMark,  # asked for by all parts that save positions
    ConsumerOffsetTable,  # stops last: the others set offsets until they end
    _delays,  # finds out what it delivered before a slave or a consumer asks for anything
    _replication,  # serves slaves before a future waits for them
    AsyncPuts,
    ConsumingService,
    ScrubService,
    Transactions,  # reads its ledger, which needs the offsets
    TransactionChecks,  # asks about what `Transactions` knows
    MetricsService,  # tells of all before it
)
"""The services of every store, in the order of their start; see `BaseStore.open` for more."""


class MessageStore(BaseStore):
    """A store that this process writes, with its services; made by `MessageStore.open`.

    Attributes
    ----------
    consumer_offsets
        Where each group goes on in each queue.
    delays
        Delivers delayed messages; None in a slave.
    replication
        The service that slaves follow (``haListenPort``), or the one that follows a master
        (``haMasterAddress``); None without either.
    batch_topics
        Topics whose queues hold batches, as brokers of 5.x have them.
    """

    keeps_memory = True

    def __init__(
        self, parts: StoreParts, *wrong: object, threads: bool = True,
        services: Iterable[Maker] = (),
    ) -> None:  # fmt: skip
        super().__init__(parts, *wrong, threads=threads, services=(*SERVICES, *services))
        self.batch_topics = self.topics_of("batch")
        service = self.attached
        self.consumer_offsets: ConsumerOffsetTable = service["consumer_offsets"]
        self.delays: DelayService | None = service.get("delays")
        self.replication: MasterService | SlaveService | None = service.get("replication")
        self._async_puts: AsyncPuts = service["async_puts"]
        self._consuming: ConsumingService = service["consuming"]
        self.scrub: ScrubService = service["scrub"]
        self.metrics: MetricsService = service["metrics"]
        self._transactions: Transactions = service["transactions"]
        self.transaction_checks: TransactionChecks = service["transaction_checks"]

    @property
    def memory_topics(self) -> TopicsOfKind:
        """Topics whose messages are in memory only.

        Raises
        ------
        ConfigError
            ``memoryTopicEnable`` is off, or the store is a slave, which has none.
        """
        if "memory" not in self.kinds.known:
            raise ConfigError(
                f"{self.layout.root} has no memory topics: memoryTopicEnable is off, or it is a "
                "slave",
                key="memoryTopicEnable",
                hint="open a master with StoreConfig(memory_topic_enable=True)",
            )
        return self.topics_of("memory")

    def at_physical_offset(self, physical_offset: int) -> StoredMessage | None:
        """Return the message whose record starts at an offset, or None.

        A message that is still in the transient store pool is committed first (K-D3).
        """
        if self.transient_pool is not None:
            self.check_open()  # a child would wait for what another thread holds at the fork
            self.transient_pool.commit_beyond(physical_offset)
        return super().at_physical_offset(physical_offset)

    @property
    def consumer_filters(self) -> ConsumerFilters:
        """Filters of consumer groups, for which each message's bit map is made.

        Raises
        ------
        ConfigError
            ``enableConsumeQueueExt`` is off: there is nowhere to keep a bit map.
        """
        extensions = self._parts.queues.make_extension
        if extensions is None:
            raise ConfigError(
                f"{self.layout.root} keeps no bit maps: enableConsumeQueueExt is off",
                key="enableConsumeQueueExt",
                hint="open it with StoreConfig(enable_consume_queue_ext=True, "
                "enable_calc_filter_bit_map=True)",
            )
        return extensions.filters

    def put_async(self, message: Message, queue_id: int = 0) -> Future[PutResult]:
        """Append a message and return a future of what `put` returns or raises.

        With SYNC_FLUSH the future is resolved when the message is on the disk; many messages wait
        for one sync, and no thread waits for each. ``asyncio.wrap_future`` makes it awaitable, and
        `rocketstore.aio` has puts and gets for asyncio. It cannot be cancelled. Messages that one
        thread puts stand in the queue in the order of the calls.

        Notes
        -----
        Source: DefaultMessageStore.asyncPutMessage.
        """
        return self._async_puts.put(message, queue_id)

    @checked
    def consume(  # noqa: PLR0913 - settings by name, all but two with defaults
        self,
        topics: str | Iterable[str],
        group: str,
        *,
        tags: str | None = None,
        start: Literal["first", "last"] | int = "last",
        idle_timeout_s: float | None = None,
        max_reconsume_times: int | None = None,
        max_unacknowledged: int = UNACKNOWLEDGED_LIMIT,
    ) -> Consumer:
        """Return an iterator over the messages that a group has not consumed yet.

        It waits for messages, goes through all queues of the topics, those that come later too, and
        through what the group gave back. Several consumers of a group, one per thread, share the
        queues. The group's offsets are the same as a broker's: each continues where the other one
        stopped.

        Parameters
        ----------
        topics
            One topic, or several.
        group
            Name of the consumer group.
        tags
            As of `get`; what was given back is not filtered again.
        start
            Where a group begins in a queue that it has no offset of: "first", "last", or a store
            time in ms. "last" is that of 4.9: a queue that is still whole, and young enough to be
            in memory, is consumed from its beginning all the same.
        idle_timeout_s
            Iterating ends when no message has come for so long; None never ends.
        max_reconsume_times
            Tries after which a message that is given back goes to the dead letters; None takes the
            group's of ``subscriptionGroup.json``, else 16.
        max_unacknowledged
            Most messages of a queue that may be unacknowledged; beyond it no more are delivered.

        Raises
        ------
        InvalidNameError
            A topic or group cannot be a name.
        ConfigError
            There is no topic, or the group consumes something else at the moment.
        FormatError
            ``consumerOffset.json`` is broken, and its backup too.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        wanted = GroupSubscription(names, tags, start, max_unacknowledged=max_unacknowledged)
        return self._consuming.consume(group, wanted, max_reconsume_times, idle_timeout_s)

    def delete_expired_files(self) -> None:
        """Have retention, if it is on, delete expired files at any hour in its next rounds."""
        self._parts.retention.delete_manually()

    def runtime_info(self) -> dict[str, str]:
        """Return 4.9's information about a running store, under its names, and some of our own."""
        self.check_open()
        return {key: str(one) for key, one in self.observation.runtime_info().items()}

    # --- transactions ---------------------------------------------------------------------------

    @checked
    def begin(
        self, message: Message, queue_id: int = 0, *, producer_group: str | None = None
    ) -> HalfMessage:
        """Store a half message: no consumer gets it before it is committed.

        It waits for its flush whatever the message says. A message without a unique key gets one.

        Parameters
        ----------
        message, queue_id
            What a commit puts, and where.
        producer_group
            The group that may end it; None takes the property ``PGROUP``, or ``DEFAULT_PRODUCER``.

        Raises
        ------
        InvalidNameError, RefusedMessageError, FlushFailedError
            As `put`.

        Notes
        -----
        Source: TransactionalMessageServiceImpl.prepareMessage.
        """
        return self._transactions.begin(message, queue_id, producer_group)

    @checked
    def commit(self, half: HalfMessage) -> EndResult:
        """Put the message of a transaction where consumers find it; see `end_transaction`."""
        return self.end_transaction(
            half.producer_group, half.queue_offset, half.physical_offset, commits=True
        )

    @checked
    def rollback(self, half: HalfMessage) -> EndResult:
        """End a transaction without its message; see `end_transaction`."""
        return self.end_transaction(
            half.producer_group, half.queue_offset, half.physical_offset, commits=False
        )

    @checked
    def end_transaction(
        self, producer_group: str, queue_offset: int, physical_offset: int, *, commits: bool
    ) -> EndResult:
        """Commit or roll back a half message that its offsets name, in whichever process it began.

        Parameters
        ----------
        producer_group, queue_offset, physical_offset
            As END_TRANSACTION has them: group, ``tranStateTableOffset`` and ``commitLogOffset``.
        commits
            True commits, False rolls back.

        Returns
        -------
        EndResult
            A transaction ends once: a later call gets ``ENDED_ALREADY`` and changes nothing. After
            ``NOT_STORED`` and ``BUSY`` it is open, and the call may be repeated.

        Raises
        ------
        FlushFailedError
            A sync failed; this store takes no message any more.

        Notes
        -----
        Source: EndTransactionProcessor.processRequest.
        """
        return self._transactions.end(
            producer_group, queue_offset, physical_offset, commits=commits
        )

    @checked
    def check_transactions(self, on_check: Callable[[StoredMessage], CheckAnswer | None]) -> None:
        """Ask about transactions without an end, every ``transactionCheckInterval``.

        Off until this is called. A half message is asked about when it is older than
        ``transactionTimeOut``, or than its property ``CHECK_IMMUNITY_TIME_IN_SECONDS``. After
        ``transactionCheckMax`` times, or ``fileReservedTime``, it is put into the topic
        ``TRANS_CHECK_MAX_TIME_TOPIC`` and ends.

        Parameters
        ----------
        on_check
            Called on a thread of the store with the half message, whose topic and queue are those
            it is meant for, and whose offsets are those that `end_transaction` takes. A callback
            that returns ``UNKNOWN`` or None is asked again later. A second call of this method
            replaces the callback.

        Notes
        -----
        Source: TransactionalMessageCheckService.
        """
        self.transaction_checks.watch(on_check)
