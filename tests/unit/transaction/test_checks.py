"""The check: whom it asks, when, what it puts, and that a transaction still ends once."""

import msgspec
import pytest

from rocketstore import CheckAnswer, EndStatus, Message, MessageStore, StoredMessage
from rocketstore.format.properties import encode_properties
from rocketstore.transaction.records import DISCARDED, HALF, OP, CheckStep, check_step
from rocketstore.units import QueueKey
from support.clock import START_MS
from support.memory import memory_directory
from support.patience import PATIENCE_S
from support.small_store import CONFIG
from support.transaction_stores import TransactionStores, all_of, ended, halves, refusing

ORDERS = QueueKey("orders", 3)
MESSAGE = Message(topic="orders", body=b"o-17", flag=7, reconsume_times=2, unique_key="K1")
SECOND_MS = 1000
HOUR_MS = 3_600_000


class Producer:
    """Who is asked, what it says, and what it was shown."""

    def __init__(self, answer: CheckAnswer | None = CheckAnswer.UNKNOWN) -> None:
        self.answer = answer
        self.asked: list[StoredMessage] = []

    def __call__(self, half: StoredMessage) -> CheckAnswer | None:
        self.asked.append(half)
        return self.answer


def turn(stores: TransactionStores, producer: Producer, after_s: int = 60) -> int:
    """Let a time go by, and check."""
    stores.clock.now_ms += after_s * SECOND_MS
    stores.store.wait_dispatched()
    stores.store.check_transactions(producer)
    return stores.store.transaction_checks.turn(stores.clock.now_ms)


def half_message(age_ms: int, **properties: str) -> StoredMessage:
    with memory_directory() as root:
        stores = TransactionStores(root)
        stores.store.begin(msgspec.structs.replace(MESSAGE, born_timestamp_ms=START_MS - age_ms))
        [half] = halves(stores.store)
        stores.store.close()
    block = encode_properties({**half.properties, **properties})
    return msgspec.structs.replace(half, raw_properties=block)


@pytest.mark.parametrize(
    ("age_ms", "properties", "step"),
    [
        (5_999, {}, CheckStep.WAIT),
        (6_000, {}, CheckStep.ASK),
        (0, {}, CheckStep.WAIT),
        (-1, {}, CheckStep.ASK),
        (6_000, {"TRANSACTION_CHECK_TIMES": "14"}, CheckStep.ASK),
        (0, {"TRANSACTION_CHECK_TIMES": "15"}, CheckStep.DISCARD),
        (72 * HOUR_MS, {}, CheckStep.ASK),
        (72 * HOUR_MS + 1, {}, CheckStep.DISCARD),
        (29_999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "30"}, CheckStep.MOVE),
        (30_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "30"}, CheckStep.ASK),
        (5_999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"}, CheckStep.MOVE),
        (5_999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, CheckStep.MOVE),
        (6_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, CheckStep.ASK),
        (0, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "0"}, CheckStep.ASK),
        (6_000, {"TRANSACTION_CHECK_TIMES": "many"}, CheckStep.ASK),
        (6_000, {"TRANSACTION_CHECK_TIMES": " 15"}, CheckStep.ASK),  # no number for 4.9 either
    ],
)
def test_a_step_follows_from_age_and_properties(age_ms, properties, step):
    half = half_message(age_ms, **properties)
    assert check_step(half, START_MS, CONFIG) is step


def test_a_half_message_is_given_up_when_the_log_would_delete_it():
    half = half_message(2 * HOUR_MS + 1)
    for hours, step in ((2, CheckStep.DISCARD), (3, CheckStep.ASK)):
        config = msgspec.structs.replace(CONFIG, file_reserved_time=hours)
        assert check_step(half, START_MS, config) is step


def test_a_producer_is_asked_about_a_copy_that_counts(stores):
    half = stores.store.begin(MESSAGE, 3, producer_group="billing")
    producer = Producer()
    assert turn(stores, producer, after_s=5) == 0
    for times in (1, 2, 3):
        assert turn(stores, producer) == 1
        shown = producer.asked[-1]
        assert (shown.topic, shown.queue_id) == ORDERS
        stored = stores.store.at_physical_offset(shown.physical_offset)
        assert stored == msgspec.structs.replace(shown, topic=HALF.topic, queue_id=0)
        assert stored.properties["TRANSACTION_CHECK_TIMES"] == str(times)
        assert (stored.queue_offset, stored.message_id) == (times, shown.message_id)
        assert (stored.flag, stored.reconsume_times) == (7, 2)
    assert not ended(stores.store)
    assert stores.store.commit(half).status is EndStatus.COMMITTED
    [final] = all_of(stores.store, ORDERS)
    assert final.prepared_transaction_offset == producer.asked[-1].physical_offset
    assert ended(stores.store) == [b"3"]
    assert turn(stores, producer) == 0


@pytest.mark.parametrize("answer", [CheckAnswer.COMMIT, CheckAnswer.ROLLBACK])
@pytest.mark.parametrize("reopened", ["no", "closed", "killed"])
def test_what_a_producer_answers_ends_the_transaction(stores, answer, reopened):
    half = stores.store.begin(MESSAGE, 3)
    producer = Producer(answer)
    assert turn(stores, producer) == 1
    assert turn(stores, producer) == 0
    if reopened != "no":
        stores.reopen(killed=reopened == "killed")
    assert len(all_of(stores.store, ORDERS)) == (answer is CheckAnswer.COMMIT)
    assert turn(stores, producer) == 0
    assert stores.store.commit(half).status is EndStatus.ENDED_ALREADY
    assert stores.store.rollback(half).status is EndStatus.ENDED_ALREADY
    assert ended(stores.store) == [b"1"]


@pytest.mark.parametrize("reopened", ["no", "closed", "killed"])
def test_an_answer_by_the_offsets_of_any_copy_counts_once(stores, reopened):
    half = stores.store.begin(MESSAGE, 3)
    producer = Producer(None)
    for _ in range(3):
        turn(stores, producer)
    if reopened != "no":
        stores.reopen(killed=reopened == "killed")
    places = [(half.queue_offset, half.physical_offset)]
    places += [(shown.queue_offset, shown.physical_offset) for shown in producer.asked]
    statuses = [
        stores.store.end_transaction("DEFAULT_PRODUCER", *place, commits=True).status
        for place in places
    ]
    assert statuses == [EndStatus.COMMITTED] + [EndStatus.ENDED_ALREADY] * 3
    assert len(all_of(stores.store, ORDERS)) == 1
    assert turn(stores, producer) == 0


@pytest.mark.parametrize("after", [True, False])
def test_a_kill_at_the_copy_leaves_one_transaction(stores, *, after):
    half = stores.store.begin(MESSAGE, 3)
    with stores.killed_at_put(after=after):
        turn(stores, Producer())
    stores.reopen(killed=True)
    producer = Producer(CheckAnswer.COMMIT)
    assert turn(stores, producer) == 1
    assert turn(stores, producer) == 0
    assert len(all_of(stores.store, ORDERS)) == 1
    assert stores.store.commit(half).status is EndStatus.ENDED_ALREADY


def test_after_a_copy_that_failed_the_turn_goes_on_with_what_is_there(stores):
    stores.store.begin(MESSAGE, 3)
    with stores.killed_at_put():
        turn(stores, Producer())
    producer = Producer(CheckAnswer.COMMIT)
    assert turn(stores, producer) == 1
    assert len(all_of(stores.store, ORDERS)) == 1
    assert producer.asked[0].properties["TRANSACTION_CHECK_TIMES"] == "2"


@pytest.mark.parametrize("number", [None, 0, 1])
def test_a_transaction_without_an_answer_is_discarded_once(stores, number):
    half = stores.store.begin(MESSAGE, 3)
    producer = Producer()
    for _ in range(15):
        assert turn(stores, producer) == 1
    if number is not None:
        with stores.killed_at_put(number):
            turn(stores, producer)
        stores.reopen(killed=True)
    assert turn(stores, producer) == turn(stores, producer) == 0
    [kept] = all_of(stores.store, DISCARDED)
    assert kept.properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert kept.raw_body == b"o-17"
    assert ended(stores.store) == [b"15"]
    assert stores.store.commit(half).status is EndStatus.ENDED_ALREADY
    assert not all_of(stores.store, ORDERS)


@pytest.mark.parametrize("indexed", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("key", ["K1", None])
@pytest.mark.parametrize("reopened", [True, False])
@pytest.mark.parametrize("second", [b"two", b"one"])
def test_a_discard_is_stored_once_whatever_is_indexed(tmp_path, indexed, key, second, *, reopened):
    before, after = (msgspec.structs.replace(CONFIG, message_index_enable=one) for one in indexed)
    stores = TransactionStores(tmp_path, before)
    for body in (b"one", second):
        keyed = msgspec.structs.replace(MESSAGE, unique_key=key and f"{key}{body!r}", body=body)
        stores.store.begin(keyed, 3)
    producer = Producer()
    for _ in range(15):
        assert turn(stores, producer) == 2
    stores.config = after
    with stores.killed_at_put():
        turn(stores, producer)
    if reopened:  # else it was an exception out of a signal handler, say
        stores.reopen(killed=True)
    assert turn(stores, producer) == turn(stores, producer) == 0
    assert [one.raw_body for one in all_of(stores.store, DISCARDED)] == [b"one", second]
    assert len(ended(stores.store)) == 2
    stores.store.abandon()


def test_what_is_owed_an_op_message_has_ended_also_when_all_is_read_again(stores):
    busy = stores.store.begin(Message(topic="orders", body=b"busy"), 3)
    stores.store._transactions.claim_at_once(busy.queue_offset)  # so the offsets stay before it
    half = stores.store.begin(MESSAGE, 3)
    producer = Producer()
    for _ in range(15):
        turn(stores, producer)
    with refusing(stores.store, OP.topic):
        turn(stores, producer)
    assert len(all_of(stores.store, DISCARDED)) == 1
    stores.store._transactions.distrust()  # as a copy does that is interrupted
    assert stores.store.commit(half).status is EndStatus.ENDED_ALREADY
    assert ended(stores.store) == [b"16"]


def test_an_immune_message_lets_others_pass_and_its_checks_are_not_counted(stores):
    immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "600"}
    stores.store.begin(msgspec.structs.replace(MESSAGE, properties=immune), 3)
    stores.store.begin(Message(topic="orders", body=b"other"), 3)
    producer = Producer(CheckAnswer.COMMIT)
    assert turn(stores, producer) == 1
    for _ in range(3):
        assert turn(stores, producer) == 0
    newest = halves(stores.store)[-1]
    assert newest.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert "TRANSACTION_CHECK_TIMES" not in newest.properties
    assert turn(stores, producer, after_s=600) == 1
    assert [one.body for one in all_of(stores.store, ORDERS)] == [b"other", b"o-17"]


def test_a_copy_that_another_host_puts_is_shown_with_that_host(stores):
    half = stores.store.begin(MESSAGE, 3)
    stores.config = msgspec.structs.replace(CONFIG, store_host="10.0.0.7:10911")
    stores.reopen(killed=False)
    producer = Producer()
    assert turn(stores, producer) == 1
    [shown], copy = producer.asked, halves(stores.store)[-1]
    assert shown.store_host == copy.store_host == "10.0.0.7:10911"
    assert shown.message_id == copy.message_id
    assert stores.store.commit(half).status is EndStatus.COMMITTED
    stores.store.rollback(stores.store.begin(MESSAGE, 3))
    hosts = {(one.store_host, one.born_host) for one in all_of(stores.store, OP)}
    assert hosts == {("10.0.0.7:10911", "10.0.0.7:10911")}


def test_a_producer_that_fails_is_asked_again(stores):
    stores.store.begin(MESSAGE, 3)
    stores.store.begin(MESSAGE, 3)

    def fails(_: StoredMessage) -> CheckAnswer:
        raise ValueError("no database")

    stores.clock.now_ms += 60 * SECOND_MS
    stores.store.wait_dispatched()
    stores.store.check_transactions(fails)
    assert stores.store.transaction_checks.turn(stores.clock.now_ms) == 2
    assert turn(stores, Producer(CheckAnswer.COMMIT)) == 2
    assert len(all_of(stores.store, ORDERS)) == 2


def test_a_half_message_that_retention_deleted_is_passed_over(stores):
    store = stores.store
    half = store.begin(MESSAGE, 3)
    for number in range(200):
        store.put(Message(topic="other", body=b"x" * 200, keys=str(number)))
    late = store.begin(MESSAGE, 3)
    store.close()
    first, *_ = sorted((stores.root / "commitlog").iterdir())
    first.unlink()
    stores.reopen(killed=False)
    assert stores.store.min_physical_offset > half.physical_offset
    assert stores.store.commit(half).status is EndStatus.NOT_FOUND
    producer = Producer(CheckAnswer.COMMIT)
    assert turn(stores, producer) == 1
    assert producer.asked[0].properties["UNIQ_KEY"] == "K1"
    assert stores.store.commit(late).status is EndStatus.ENDED_ALREADY
    assert len(all_of(stores.store, ORDERS)) == 1


def test_what_is_no_half_message_of_anybody_is_discarded(stores):
    stores.store.put(Message(topic=HALF.topic, body=b"astray"))
    producer = Producer(CheckAnswer.COMMIT)
    assert turn(stores, producer) == 0
    assert [one.body for one in all_of(stores.store, DISCARDED)] == [b"astray"]
    assert ended(stores.store) == [b"0"]


def test_without_a_callback_nothing_is_checked_or_counted(stores):
    stores.store.begin(MESSAGE, 3)
    stores.store.wait_dispatched()
    assert stores.store.transaction_checks.turn(START_MS + HOUR_MS) == 0
    assert len(halves(stores.store)) == 1


def test_with_threads_a_check_runs_by_itself():
    settings = msgspec.structs.replace(CONFIG, transaction_check_interval=1, transaction_time_out=0)
    with memory_directory() as root, MessageStore.open(root, settings) as store:
        store.check_transactions(Producer(CheckAnswer.COMMIT))
        assert store.transaction_checks._thread._interval_s == 0.001
        store.begin(MESSAGE, 3)
        assert store.wait_for("orders", 3, 0, timeout_s=PATIENCE_S)


def test_age_and_number_of_checks_are_settings():
    settings = msgspec.structs.replace(CONFIG, transaction_time_out=90_000, transaction_check_max=1)
    with memory_directory() as root:
        stores = TransactionStores(root, settings)
        stores.store.begin(MESSAGE, 3)
        producer = Producer()
        assert [turn(stores, producer) for _ in range(3)] == [0, 1, 0]
        assert len(all_of(stores.store, DISCARDED)) == 1
        stores.store.close()
