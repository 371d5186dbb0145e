"""Puts of messages for several queues: a number in each of them, given once and without a gap."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rocketstore import EndStatus, HalfMessage, Message, PutMessageStatus, RefusedMessageError
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.storage.log.prepared import PreparedMessage
from rocketstore.transaction.records import HALF
from support.configured_store import open_small
from support.failing_disk import FailingDisk

TOPIC = "orders"
ON = {"enable_multi_dispatch": True, "enable_lmq": True}
NAMES, NUMBERS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"


@pytest.fixture
def store(tmp_path, clock):
    with open_small(tmp_path, clock, **ON) as opened:
        yield opened


def message(names, body=b"x", **properties):
    return Message(topic=TOPIC, body=body, properties={NAMES: names, **properties})


def put(store, names, queue_id=3, **more):
    result = store.put(message(names, **more), queue_id)
    store.wait_dispatched()
    return result


def each_way_refuses(store, names, why):
    for way in (
        lambda: store.put(message(names), 3),
        lambda: store.put_prepared(store.prepare(message(names)), queue_id=3),
        lambda: store.put_async(message(names), 3).result(),
        lambda: store.begin(message(names), 3),
    ):
        with pytest.raises(RefusedMessageError, match=why):
            way()


def deliver(store, clock):
    clock.now_ms += 1_000
    for _ in range(5):
        store.delays.turn()
        store.wait_dispatched()


def read(store, topic, queue_id=0):
    return store.get(topic, queue_id, 0, 100).messages


def numbers(store, topic, queue_id=0):
    """Return what the messages of a queue say of their numbers in it."""
    found = []
    for one in read(store, topic, queue_id):
        names = one.properties[NAMES].rstrip(",").split(",")
        found.append(int(one.properties[NUMBERS].split(",")[names.index(topic)]))
    return found


def ends(store):
    return {tuple(key): store.max_offset(*key) for key in store.queues()}


# --- numbers ------------------------------------------------------------------------------------


def test_a_message_stands_once_in_the_log_and_in_every_queue_that_it_names(store):
    for names in ("%LMQ%a", "copies,%LMQ%a", "%LMQ%b,copies,"):
        assert put(store, names).is_stored
    assert [one.properties[NUMBERS] for one in read(store, TOPIC, 3)] == ["0", "0,1", "0,1"]
    assert ends(store) == {(TOPIC, 3): 3, ("%LMQ%a", 0): 2, ("%LMQ%b", 0): 1, ("copies", 3): 2}
    places = {one.physical_offset for key in store.queues() for one in read(store, *key)}
    assert len(places) == 3


def test_without_the_second_setting_a_light_queue_is_one_like_the_others_and_has_no_limit(tmp_path):
    settings = {"enable_multi_dispatch": True, "max_lmq_consume_queue_num": 0}
    with open_small(tmp_path, **settings) as store:
        put(store, "%LMQ%a")
        assert ends(store) == {(TOPIC, 3): 1, ("%LMQ%a", 3): 1}


def test_what_is_stored_is_encoded_again_without_wait_and_without_older_numbers(store):
    put(store, "copies", WAIT="true", **{NUMBERS: "17", NUMBERS + "S": "1"})
    (stored,) = read(store, TOPIC, 3)
    assert stored.raw_properties == (
        b"INNER_MULTI_QUEUE_OFFSETS\x011\2INNER_MULTI_DISPATCH\1copies\2INNER_MULTI_QUEUE_OFFSET\x010"
    )


def test_numbers_go_on_beside_direct_puts_into_the_same_queue(store):
    put(store, "copies")
    assert store.put(Message(topic="copies", body=b"direct"), 3).queue_offset == 1
    put(store, "copies")
    assert store.put(Message(topic="copies", body=b"direct"), 3).queue_offset == 3
    store.wait_dispatched()
    assert [one.topic for one in read(store, "copies", 3)] == [TOPIC, "copies"] * 2


def test_numbers_have_no_gap_and_none_twice_when_many_put_at_once(tmp_path):
    each = 150

    def put_all(names):
        for _ in range(each):
            one = Message(topic="copies") if names is None else message(names)
            assert store.put(one, 3).is_stored

    with open_small(tmp_path, threads=True, **ON) as store:
        wanted = [None, "copies", "%LMQ%a,copies", "copies,%LMQ%a", "%LMQ%a"]
        with ThreadPoolExecutor(len(wanted)) as pool:
            list(pool.map(put_all, wanted))
        store.wait_dispatched()
        assert ends(store) == {
            (TOPIC, 3): 4 * each, ("copies", 3): 4 * each, ("%LMQ%a", 0): 3 * each
        }  # fmt: skip
        for key in store.queues():
            places = [entry.physical_offset for _, entry in store.queue_entries(*key)]
            assert places == sorted(set(places))
            assert places[0] >= 0


@pytest.mark.parametrize("is_clean", [True, False])
def test_numbers_go_on_after_a_restart(tmp_path, is_clean):
    store = open_small(tmp_path, **ON)
    for _ in range(5):
        store.put(message("%LMQ%a,copies"), 3)
    if is_clean:
        store.close()
    else:
        store.abandon()  # nothing was dispatched
    with open_small(tmp_path, **ON) as store:
        assert store.next_queue_offset("%LMQ%a", 0) == store.next_queue_offset("copies", 3) == 5
        put(store, "%LMQ%a,copies")
        assert numbers(store, "%LMQ%a") == numbers(store, "copies", 3) == list(range(6))


def test_an_append_that_fails_gives_no_number(tmp_path):
    disk = FailingDisk()
    with open_small(tmp_path, disk=disk, **ON) as store:
        while put(store, "%LMQ%a,copies", body=bytes(10_000)).physical_offset < 40_000:
            pass
        before = ends(store)
        disk.is_full = True
        refused = put(store, "%LMQ%a,copies,fresh", body=bytes(30_000))
        assert refused.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        disk.is_full = False
        assert ends(store) == before
        put(store, "%LMQ%a,copies,fresh", body=bytes(30_000))
        assert ends(store) == {key: end + 1 for key, end in before.items()} | {("fresh", 3): 1}


def test_numbers_that_make_the_properties_too_long_are_a_status_and_puts_go_on(store):
    room = 32_767 - len(f"{NAMES}\x01copies\x02{NUMBERS}\x010\x02a\x01")
    refused = put(store, "copies", a="x" * (room + 1))
    assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert ends(store) == {}
    assert put(store, "copies", a="x" * room).is_stored
    assert store.put(Message(topic=TOPIC), 3).queue_offset == 1
    assert ends(store) == {(TOPIC, 3): 1, ("copies", 3): 1}


# --- the limit ----------------------------------------------------------------------------------


def test_a_put_makes_no_more_light_queues_than_the_limit(tmp_path):
    limited = {**ON, "max_lmq_consume_queue_num": 2}
    for _ in range(2):  # also after a restart
        with open_small(tmp_path, **limited) as store:
            assert put(store, "%LMQ%a,%LMQ%b,copies").is_stored
            refused = put(store, "%LMQ%a,%LMQ%c")
            assert refused.status is PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
            assert "maxLmqConsumeQueueNum" in str(refused.detail)
            assert put(store, "%LMQ%b,others").is_stored
            assert "%LMQ%c" not in store.topics()
    with open_small(tmp_path, **{**limited, "max_lmq_consume_queue_num": 3}) as store:
        assert put(store, "%LMQ%a,%LMQ%c").is_stored
    with open_small(tmp_path, **{**limited, "max_lmq_consume_queue_num": 1}) as store:
        assert put(store, "%LMQ%a,%LMQ%b").is_stored  # there are more than the limit already
        assert len(read(store, "%LMQ%b")) == 5


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("copies,copies", "named twice"),
        ("%LMQ%a,copies,%LMQ%a", "named twice"),
        (TOPIC, "own queue"),
        (",copies", "empty"),
        ("copies,,others", "empty"),
        ("copies,../../x", "characters outside"),
        (" ,copies", "characters outside"),
        ("x" * 128, "128 bytes"),
        ("copies,SCHEDULE_TOPIC_XXXX", "until they are put elsewhere"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "until they are put elsewhere"),
    ],
)
def test_a_list_that_cannot_be_followed_is_refused_and_nothing_is_stored(store, names, why):
    each_way_refuses(store, names, why)
    store.wait_dispatched()
    assert ends(store) == {}
    assert store.max_physical_offset == 0


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("room", ["memory", "batches"])
def test_no_message_of_another_topic_goes_to_a_topic_of_a_room(tmp_path, room, is_new):
    settings = ON | {"memory_topic_enable": True}
    with open_small(tmp_path, **settings) as store:
        store.memory_topics.create("memory")
        store.batch_topics.create("batches")
        if is_new:
            _assert_refused(store, room)
    with open_small(tmp_path, **settings) as store:
        _assert_refused(store, room)


def _assert_refused(store, room):
    named = message(f"copies,{room}")
    for put in (store.put, lambda one: store.put_prepared(store.prepare(one)), store.begin):
        with pytest.raises(RefusedMessageError, match="memory topic or batch topic"):
            put(named)
    assert store.max_physical_offset == 0


def test_the_topic_of_the_message_may_be_named_where_it_is_another_queue(store):
    store.put(Message(topic="%LMQ%a", properties={NAMES: "%LMQ%a"}), 3)
    store.wait_dispatched()
    assert ends(store) == {("%LMQ%a", 3): 1, ("%LMQ%a", 0): 1}


def test_a_list_without_names_is_none(store):
    for names in (" ", ",,"):
        assert put(store, names).is_stored
    assert ends(store) == {(TOPIC, 3): 2}


def test_with_the_setting_off_a_list_is_refused_as_it_would_not_be_followed(tmp_path):
    with open_small(tmp_path) as store:
        each_way_refuses(store, "copies", "open the store with enableMulti")
        assert store.max_physical_offset == 0


def test_no_batch_goes_to_several_queues(store):
    one = message("copies")
    block = f"{NAMES}\x01copies".encode()
    for way in (
        lambda: store.put_batch([one, one], 3),
        lambda: store.put_client_batch(TOPIC, 3, encode_client_batch([(0, b"", block)])),
        lambda: store.put_client_batch(
            TOPIC, 3, encode_client_batch([(0, b"", b"")]), properties=block
        ),
    ):
        with pytest.raises(RefusedMessageError, match="by itself"):
            way()
    assert store.max_physical_offset == 0


# --- other ways to put --------------------------------------------------------------------------


def test_every_way_of_a_single_put_gives_the_same_record(store):
    prepared = store.prepare(message("%LMQ%a"))
    raw = PreparedMessage(TOPIC, b"x", f"{NAMES}\x01%LMQ%a".encode())
    store.put(message("%LMQ%a"), 3)
    store.put_prepared(prepared, queue_id=3)
    store.put_prepared(raw, b"x", queue_id=3)
    store.put_async(message("%LMQ%a"), 3).result()
    store.wait_dispatched()
    assert numbers(store, "%LMQ%a") == [0, 1, 2, 3]
    assert {one.body for one in read(store, "%LMQ%a")} == {b"x"}


def test_a_delayed_message_goes_to_its_queues_when_it_is_delivered(store, clock):
    put(store, "%LMQ%a,copies", DELAY="1", **{NUMBERS: "7,7"})
    assert ends(store) == {("SCHEDULE_TOPIC_XXXX", 0): 1}
    assert NUMBERS not in read(store, "SCHEDULE_TOPIC_XXXX")[0].properties
    put(store, "%LMQ%a,copies")
    deliver(store, clock)
    assert numbers(store, "%LMQ%a") == numbers(store, "copies", 3) == [0, 1]
    assert numbers(store, "copies", 3) == [0, 1]


def test_after_a_kill_a_message_for_several_queues_is_not_delivered_twice(tmp_path, clock):
    store = open_small(tmp_path, clock, **ON)
    for _ in range(2):
        put(store, "%LMQ%a", DELAY="1", WAIT="true")
        deliver(store, clock)
    (store.layout.config / "delayOffset.json").unlink(missing_ok=True)
    store.abandon()
    with open_small(tmp_path, clock, **ON) as store:
        deliver(store, clock)
        assert numbers(store, "%LMQ%a") == [0, 1]
        assert store.max_offset(TOPIC, 3) == 2


def test_a_half_message_goes_to_its_queues_when_it_is_committed(store):
    halves = [store.begin(message("%LMQ%a,copies"), 3) for _ in range(2)]
    store.wait_dispatched()
    assert "%LMQ%a" not in store.topics()
    store.rollback(halves[0])
    store.commit(halves[1])
    store.wait_dispatched()
    assert numbers(store, "%LMQ%a") == numbers(store, "copies", 3) == [0]
    assert store.max_offset(TOPIC, 3) == 1


WRONG_LISTS = ["copies,copies", "copies,a b", f"copies,{TOPIC}"]


@pytest.mark.parametrize("names", WRONG_LISTS)
def test_a_half_message_that_4_9_let_begin_with_a_wrong_list_is_committed_where_it_can(
    store, names
):
    begun = store.begin(message("copies"), 3)
    store.wait_dispatched()
    (half,) = read(store, HALF.topic)
    block = half.raw_properties.replace(b"copies", names.encode())
    foreign = store.put_record(*HALF, PreparedMessage("", b"y", block).record)
    store.wait_dispatched()
    for put in (begun.put, foreign):
        half = HalfMessage(put, begun.producer_group, begun.transaction_id)
        assert store.commit(half).status is EndStatus.COMMITTED
    store.wait_dispatched()
    assert numbers(store, "copies", 3) == [0, 1]
    assert store.max_offset(TOPIC, 3) == 2
    assert store.commit(half).status is EndStatus.ENDED_ALREADY


@pytest.mark.parametrize("names", WRONG_LISTS)
def test_what_4_9_let_wait_with_a_wrong_list_is_delivered_where_it_can(store, clock, names):
    put(store, "copies", DELAY="1")
    (waiting,) = read(store, "SCHEDULE_TOPIC_XXXX")
    block = waiting.raw_properties.replace(b"copies", names.encode())
    store.put_record("SCHEDULE_TOPIC_XXXX", 0, PreparedMessage("", b"y", block).record)
    store.wait_dispatched()
    deliver(store, clock)
    assert numbers(store, "copies", 3) == [0, 1]
    assert store.max_offset(TOPIC, 3) == 2
