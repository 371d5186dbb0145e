"""An absent queue is lost only where something says that it was there; a topic has to be."""

import json
import shutil

import msgspec
import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.errors import ConfigError, FormatError, NotAStoreError, StoreError
from rocketstore.format.known_ends import encode_known_ends
from rocketstore.pipeline import queues
from rocketstore.pipeline.options import parse_options
from rocketstore.places.small_files import read_known_ends
from rocketstore.places.stores import StorePlace
from rocketstore.storage import checkpoint
from rocketstore.units import QueueKey
from support.memory import memory_directory
from support.pipeline_tables import plan_table, read_table
from support.store_files import StoreFiles
from support.stream_run import StreamRun

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 18,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=100,
    max_index_num=400,
    max_message_size=20_000,
)
BODY = bytes(1000)


@pytest.fixture(scope="module")
def written():
    with memory_directory() as directory:
        with MessageStore.open(directory / "store", CONFIG) as opened:
            for number in range(1200):
                opened.put(Message(topic="loud", body=BODY), queue_id=number % 2)
                if number in (400, 401):
                    opened.put(Message(topic="quiet", body=BODY), queue_id=7).raise_for_status()
            for queue_id in (1, 2):
                opened.put(Message(topic="pair", body=BODY), queue_id=queue_id)
            opened.wait_dispatched()
        yield directory / "store"


@pytest.fixture
def store(tmp_path, written):
    return shutil.copytree(written, tmp_path / "store")


@pytest.fixture
def other(tmp_path):
    with MessageStore.open(tmp_path / "other", CONFIG) as opened:
        for _ in range(400):
            opened.put(Message(topic="elsewhere", body=BODY))
        opened.wait_dispatched()
    return tmp_path / "other"


def planned_bytes(*paths, **options):
    options["paths"] = json.dumps([str(path) for path in paths])
    return sum(part.byte_count for task in plan_table(paths[0], **options) for part in task)


def write_table(store, name, content):
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / name).write_text(json.dumps(content))


def topics(store, **counts):
    table = {
        name: {"topicName": name, "readQueueNums": n, "writeQueueNums": n}
        for name, n in counts.items()
    }
    write_table(store, "topics.json", {"topicConfigTable": table})


# --- nothing says that it was there -------------------------------------------------------------


@pytest.mark.parametrize(
    "choice",
    [
        {"subscribe": "quiet"},
        {"subscribePattern": "qui.t"},
        {"assign": '{"quiet":[0,7]}'},
        {"assign": '{"quiet":[3]}'},
        {"subscribe": "quiet,pair"},
    ],
)
def test_queues_that_never_had_a_message_cost_nothing(store, choice):
    everything = planned_bytes(store)
    assert planned_bytes(store, **choice) < 0.05 * everything
    wanted = {"quiet", "pair"} if "pair" in choice.get("subscribe", "") else {"quiet"}
    rows = (
        []
        if "3" in choice.get("assign", "")
        else [row for row in read_table(store) if row["topic"] in wanted]
    )
    assert read_table(store, **choice) == rows


def test_that_topics_json_names_more_queues_says_nothing_where_known_ends_count(store):
    topics(store, quiet=16)
    assert planned_bytes(store, subscribe="quiet") < 0.05 * planned_bytes(store)
    by_topics_json_since_somebody_else_wrote(store)
    topics(store, quiet=16)
    assert planned_bytes(store, subscribe="quiet") == planned_bytes(store)


def test_a_topics_json_with_a_thousand_million_queues_makes_nobody_count_to_it(store, monkeypatch):
    (store / "known-ends").unlink()
    topics(store, quiet=10)
    monkeypatch.setattr(queues, "MOST_QUEUES", 3)
    place = StorePlace(str(store), "store", is_open=False)
    options = parse_options({"path": str(store), "subscribe": "quiet"})
    assert queues.lost_queues(place, options, (), or_maybe=True).count("quiet") == 3


def test_a_group_that_stands_at_the_begin_of_a_queue_has_had_no_message_of_it(store):
    write_table(store, "consumerOffset.json", {"offsetTable": {"quiet@g": {0: 0, 7: 2}}})
    assert planned_bytes(store, subscribe="quiet") < 0.05 * planned_bytes(store)


def test_a_store_of_several_that_lacks_the_topic_is_left_out(store, other):
    pair = (store, other)
    assert planned_bytes(*pair, subscribe="quiet") < 0.05 * planned_bytes(*pair)
    found = read_table(store, paths=json.dumps([str(one) for one in pair]), subscribe="quiet")
    assert [row["queueOffset"] for row in found] == [0, 1]


# --- something does -----------------------------------------------------------------------------


def by_known_ends(store):
    assert QueueKey("pair", 2) in read_known_ends(StorePlace(str(store), "store", is_open=False))


def by_an_offset_of_a_group(store):
    (store / "known-ends").unlink()
    write_table(store, "consumerOffset.json", {"offsetTable": {"pair@g": {2: 1}}})


def by_topics_json(store):
    (store / "known-ends").unlink()
    topics(store, pair=3)


def by_topics_json_since_somebody_else_wrote(store):
    # As a broker of 4.9 does, whose queues `known-ends` cannot name.
    content = json.loads((store / "known-ends").read_text())
    end = content[1][2]
    path = sorted((store / "commitlog").iterdir())[end >> 18]
    data = bytearray(path.read_bytes())
    at = end % (1 << 18)
    data[at : at + 8] = (len(data) - at).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    path.write_bytes(data)
    topics(store, pair=3)


def by_a_table_that_cannot_be_read(store):
    (store / "config").mkdir(exist_ok=True)
    (store / "config/consumerOffset.json").write_text("{")


SAYS = [
    by_known_ends,
    by_an_offset_of_a_group,
    by_topics_json,
    by_topics_json_since_somebody_else_wrote,
    by_a_table_that_cannot_be_read,
]


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("lost", ["pair/2", "pair"])
def test_a_queue_that_was_there_is_looked_for_in_the_whole_log_and_named(store, says, lost, caplog):
    expected = [row for row in read_table(store) if row["topic"] == "pair"]
    assert len(expected) == 2
    says(store)
    shutil.rmtree(store / "consumequeue" / lost)
    if says is by_a_table_that_cannot_be_read and lost == "pair":
        (store / "config/topics.json").write_text(
            json.dumps({"topicConfigTable": {"pair": {"topicName": "pair"}}})
        )
    if says is by_an_offset_of_a_group and lost == "pair":
        topics(store, pair=1)  # or no store would have that topic
    assert planned_bytes(store, subscribe="pair") == planned_bytes(store)
    assert read_table(store, subscribe="pair") == expected
    (said, *_) = [one for one in caplog.messages if one.startswith("plan.reads_all")]
    assert "pair/2" in said or "consumerOffset.json" in said


def test_a_table_of_entries_says_which_queue_is_lost(store):
    shutil.rmtree(store / "consumequeue/pair/2")
    for choice in ({}, {"subscribe": "pair"}, {"assign": '{"pair":[1,2]}'}):
        with pytest.raises(StoreError, match="has no queue pair/2, and had one"):
            read_table(store, table="consumequeue", **choice)
    assert len(read_table(store, table="consumequeue", subscribe="loud")) == 1200
    options = {"table": "consumequeue", "subscribe": "pair", "failOnDataLoss": False}
    assert len(read_table(store, **options)) == 1


def test_a_query_s_own_offset_says_that_a_queue_was_there(store):
    (store / "known-ends").unlink()
    expected = read_table(store, assign='{"pair":[2]}')
    shutil.rmtree(store / "consumequeue/pair/2")
    starts = {"subscribe": "pair", "endingOffsets": '{"pair":{"2":1}}'}
    with pytest.raises(StoreError, match="there is no queue pair/2"):
        read_table(store, **starts)
    found = read_table(store, **starts, failOnDataLoss=False)
    assert [row for row in found if row["queueId"] == 2] == expected


def test_a_query_s_own_offset_and_time_count_where_no_file_of_the_log_is_left(store, caplog):
    shutil.rmtree(store / "commitlog")
    (store / "commitlog").mkdir()
    (store / "lock").touch()
    starts = {"subscribe": "pair", "startingOffsets": '{"pair":{"2":0}}'}
    since = {"subscribe": "pair", "startingOffsetsByTimestamp": '{"pair":{"0":1}}'}
    for choice in ({}, {"subscribe": "pair"}, starts, since):
        for read in (read_table, lambda *store, **given: StreamRun(*store, **given).batch()):
            with pytest.raises(
                NotAStoreError, match=r"/store had messages, and has no CommitLog file"
            ):
                read(store, **choice)
    with pytest.raises(StoreError, match=r"startingOffsets asks for 0, there are 1 to 1"):
        read_table(store, table="consumequeue", **starts)
    assert read_table(store, **starts, failOnDataLoss=False) == []
    assert StreamRun(store, **starts, failOnDataLoss=False).batch() == []
    assert (
        "startingOffsets asks for offset 0: expected it in the queue, found 1 to 1" in caplog.text
    )
    since["failOnDataLoss"] = False
    assert read_table(store, **since) == []
    fails = {"startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(StoreError, match=r"queue pair/0 of .*: nothing was stored at 1 ms"):
        read_table(store, **since, **fails)
    shutil.rmtree(store / "consumequeue")
    (store / "known-ends").unlink()
    for topics in ({}, {"subscribe": "pair", "failOnDataLoss": False}):
        assert read_table(store, **topics, startingTimestamp=1) == []
        for read in (read_table, lambda *store, **given: StreamRun(*store, **given).batch()):
            with pytest.raises(StoreError, match=r"/store: nothing was stored at 1 ms"):
                read(store, **topics, **fails, startingTimestamp=1)


def pairs_of(rows):
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


def test_an_absent_queue_may_be_named_at_its_beginning(store):
    named = {"subscribe": "pair", "startingOffsets": '{"pair":{"0":0,"1":0,"5":-2}}'}
    assert pairs_of(read_table(store, **named)) == [(1, 0), (2, 0)]
    ended = {"endingOffsets": '{"pair":{"0":-1,"1":-1,"5":0}}'}
    assert pairs_of(read_table(store, **named, **ended)) == [(1, 0), (2, 0)]
    assert pairs_of(StreamRun(store, **named).batch()) == [(1, 0), (2, 0)]
    with pytest.raises(StoreError, match="there is no queue pair/5"):
        read_table(store, subscribe="pair", startingOffsets='{"pair":{"5":1}}')


def test_a_stream_s_own_start_says_that_a_queue_was_there(store):
    later = {"subscribe": "pair", "startingOffsets": '{"pair":{"0":3}}'}
    with pytest.raises(StoreError, match=r"queue pair/0 of .* asks for offset 3: .* found 0 to 0"):
        StreamRun(store, **later).batch()
    found = StreamRun(store, **later, failOnDataLoss=False).batch()
    assert pairs_of(found) == [(1, 0), (2, 0)]
    since = {"subscribe": "pair", "startingOffsetsByTimestamp": '{"pair":{"0":1,"1":1}}'}
    assert pairs_of(StreamRun(store, **since).batch()) == [(1, 0), (2, 0)]
    with pytest.raises(StoreError, match=r"queue pair/0 of .*: nothing was stored at 1 ms"):
        StreamRun(store, **since, startingOffsetsByTimestampStrategy="error").batch()


# --- known ends ---------------------------------------------------------------------------------


def test_known_ends_are_read_as_storage_writes_them(store):
    ends = checkpoint.read_known_ends(store)
    place = StorePlace(str(store), "store", is_open=False)
    assert read_known_ends(place) == {key for key, _ in ends.queues}
    with MessageStore.open(store, CONFIG) as opened:
        opened.put(Message(topic="later", body=BODY))
        opened.wait_dispatched()
        # While it is open the log goes on after what the file says.
        assert read_known_ends(place._replace(is_open=True)) == {key for key, _ in ends.queues}
    assert QueueKey("later", 0) in read_known_ends(place)


def test_known_ends_of_another_log_do_not_count(store, other):
    (store / "known-ends").write_bytes((other / "known-ends").read_bytes())
    for is_open in (False, True):
        assert read_known_ends(StorePlace(str(store), "store", is_open=is_open)) is None


def test_known_ends_without_a_tie_do_not_count(store):
    ends = checkpoint.read_known_ends(store)
    untied = msgspec.structs.replace(ends, ties=[])
    (store / "known-ends").write_bytes(encode_known_ends(untied))
    for is_open in (False, True):
        assert read_known_ends(StorePlace(str(store), "store", is_open=is_open)) is None


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b"[1]", b"[1,[1,true,0,[],null]]", b"\xef\xbb\xbf[]", b"[\xff"]
)
def test_known_ends_that_are_not_whole_do_not_count(store, content):
    (store / "known-ends").write_bytes(content)
    assert read_known_ends(StorePlace(str(store), "store", is_open=False)) is None


# --- a topic that no store has ------------------------------------------------------------------


@pytest.mark.parametrize("table", ["messages", "commitlog", "consumequeue"])
@pytest.mark.parametrize(
    "choice", [{"subscribe": "quite"}, {"topic": "quiet,QUIET"}, {"assign": '{"quite":[0]}'}]
)
def test_a_misspelt_topic_is_an_error_with_the_nearest_one(store, table, choice):
    with pytest.raises(
        ConfigError, match=r"no topic (quite|QUIET) in .*did you mean quiet"
    ) as error:
        read_table(store, table=table, **choice)
    assert error.value.key == "subscribe"
    rows = read_table(store, table=table, failOnDataLoss=False, **choice)
    assert {row["topic"] for row in rows} <= {"quiet"}
    planned = planned_bytes(store, subscribe="quite", failOnDataLoss=False)
    assert planned < 0.05 * planned_bytes(store)


def test_a_name_that_resembles_no_topic_is_answered_with_those_that_there_are(tmp_path):
    store = StoreFiles(tmp_path / "store")
    for number in range(11):
        store.put(f"Topic{number:02}")
    with pytest.raises(
        ConfigError, match=r"the topics are Topic00, .*, Topic09, …\. To read"
    ) as error:
        read_table(store.root, subscribe="payments")
    assert "did you mean" not in error.value.hint


def test_a_stream_of_a_misspelt_topic_does_not_begin(store):
    with pytest.raises(ConfigError, match=r"no topic quite in"):
        StreamRun(store, subscribe="quite", startingOffsets="earliest").batch()
    run = StreamRun(store, subscribe="quite", startingOffsets="earliest", failOnDataLoss=False)
    assert run.batch() == []


def test_a_topic_that_has_had_no_message_is_one(store):
    topics(store, fresh=4)
    assert read_table(store, subscribe="fresh") == []
    assert read_table(store, table="consumequeue", subscribe="fresh") == []
    assert StreamRun(store, subscribe="fresh", startingOffsets="earliest").batch() == []


def test_a_pattern_that_no_topic_matches_is_none(store):
    assert read_table(store, subscribePattern="quite") == []


def test_a_topic_whose_first_message_no_queue_has_yet_is_one(tmp_path):
    store = StoreFiles(tmp_path / "store")
    store.put("Old")
    late = store.put("New", dispatch=False)
    assert [row["physicalOffset"] for row in read_table(store.root, subscribe="New")] == [late]
    with pytest.raises(ConfigError, match=r"no topic Now in .*the topics are Old"):
        read_table(store.root, subscribe="Now")


def test_of_a_store_without_any_queue_nobody_knows_the_topics(store):
    shutil.rmtree(store / "consumequeue")
    (store / "known-ends").unlink()
    expected = [row for row in read_table(store) if row["topic"] == "quiet"]
    assert read_table(store, subscribe="quiet") == expected
    assert read_table(store, subscribe="quite") == []


def test_which_topics_there_are_is_asked_of_tables_without_an_error(store):
    for table in ("topics", "queues", "consumers"):
        assert read_table(store, table=table, subscribe="quite") == []
    assert parse_options({"path": "x", "table": "topics", "subscribe": "a"}).fail_on_data_loss


def test_a_broken_topics_json_is_named_where_it_is_needed(store):
    (store / "config").mkdir(exist_ok=True)
    (store / "config/topics.json").write_text("{")
    assert len(read_table(store, subscribe="quiet")) == 2
    with pytest.raises(FormatError, match=r"topics\.json"):
        read_table(store, subscribe="quite")
