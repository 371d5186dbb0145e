"""Every door to a store against every kind of topic: what is put by one is found by all others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketstore import (
    Message,
    MessageStore,
    ReadOnlyStore,
    RefusedMessageError,
    StoreError,
    repair_store,
    verify_store,
)
from rocketstore.audit.repair import rebuild_store
from rocketstore.cli.application import run
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.properties import encode_properties
from rocketstore.native.log_end import Record
from rocketstore.pipeline.sink import sink_commit, sink_writer
from rocketstore.storage.kinds.memory_log import MemoryLog
from rocketstore.storage.queues.topic_kinds import TopicKind
from rocketstore.storage.reading.pages import PageLimits, Pages, page_without_entry
from rocketstore.storage.results import PutMessageStatus, PutResult
from rocketstore.storage.store import BaseStore
from rocketstore.units import QueueKey
from support.audit_runs import audited
from support.clock import START_MS, Clock
from support.patience import PATIENCE_S
from support.reading import all_messages
from support.rebuild_runs import rebuilt_here
from support.sink_parts import CONFIG, rows, sink_options, stage

KINDS = ("plain", "memory", "batch")
ON_DISK = ("plain", "batch")
T = "t"
BODIES = [b"a", b"b", b"c"]
IN_MEMORY = "is a memory topic: only the program that keeps it puts there"


def open_store(root: Path, kind: str = "", **more: Any) -> MessageStore:
    config = msgspec.structs.replace(CONFIG, memory_topic_enable=True)
    store = MessageStore.open(root, config, **{"clock": Clock(), "threads": False} | more)
    if kind in ("memory", "batch"):
        getattr(store, f"{kind}_topics").create(T)
    return store


def messages() -> list[Message]:
    return [Message(topic=T, body=body, keys=body.decode(), tags="x") for body in BODIES]


def triples() -> list[tuple[int, bytes, bytes]]:
    return [(0, one.body, encode_properties({"TAGS": "x"})) for one in messages()]


PUTS: dict[str, Callable[[MessageStore], list[Any]]] = {
    "put": lambda s: [s.put(one) for one in messages()],
    "put_prepared": lambda s: [s.put_prepared(s.prepare(one)) for one in messages()],
    "put_batch": lambda s: [s.put_batch(messages())],
    "put_client_batch": lambda s: [s.put_client_batch(T, 0, encode_client_batch(triples()))],
    "put_record": lambda s: [
        s.put_record(T, 0, Record(body, block, bytes(8))) for _, body, block in triples()
    ],
    "put_async": lambda s: [s.put_async(one).result(PATIENCE_S) for one in messages()],
    "wait_flush=False": lambda s: [
        s.acknowledged(s.put(msgspec.structs.replace(one, wait_flush=False))) for one in messages()
    ],
}


def bodies(reader: Any, topic: str = T, queue_id: int = 0, **how: Any) -> list[bytes]:
    return [one.body for one in all_messages(reader, topic, queue_id, **how)]


# --- put and get ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", PUTS)
def test_what_is_put_by_any_door_is_found_by_every_reader(root, kind, door):
    with open_store(root, kind, threads=door == "put_async") as store:
        results = PUTS[door](store)
        assert [one.status for one in results] == [PutMessageStatus.PUT_OK] * len(results)
        assert sum(one.message_count for one in results) == 3
        store.wait_dispatched()
        assert bodies(store) == bodies(store, tags="x") == BODIES
        assert bodies(store, max_messages=1) == BODIES
        page = store.get(T, 0, 1)
        assert [one.queue_offset for one in page.messages] == [1, 2]
        assert {(one.topic, one.queue_id, one.tags) for one in page.messages} == {(T, 0, "x")}
        assert not store.get(T, 0, 0, tags="y").messages
        raw, views = store.get_raw(T, 0, 0), store.get_views(T, 0, 0)
        assert raw.records == b"".join(views.records)
        assert raw.next_offset == views.next_offset == 3
        assert all(body in raw.records for body in BODIES)
        del views
        assert (store.min_offset(T, 0), store.max_offset(T, 0), store.message_count(T, 0)) == (
            0, 3, 3,
        )  # fmt: skip
        assert store.next_queue_offset(T, 0) == 3
        assert store.queues() == [QueueKey(T, 0)]
        assert (store.topics(), store.queue_count) == ([T], 1)
        assert store.wait_for(T, 0, 2, 1)
        entries = list(store.queue_entries(T, 0))
        assert sum(entry.record_size for _, entry in entries) == len(raw.records)
        assert store.statistics.total_put().messages == 3
        assert store.statistics.put_by_topic() == {T: store.statistics.total_put()}
        if kind != "memory" and door in ("put", "put_prepared"):
            assert [one.body for one in store.find(T, "b")] == [b"b"]


@pytest.mark.parametrize("kind", KINDS)
def test_times_lead_to_offsets(root, kind, clock):
    with open_store(root, kind, clock=clock) as store:
        for one in messages():
            store.put(one)
            clock.now_ms += 1000
        store.wait_dispatched()
        times = [store.store_timestamp(T, 0, number) for number in range(4)]
        assert times == [START_MS, START_MS + 1000, START_MS + 2000, None]
        asked = (0, START_MS, START_MS + 1, START_MS + 2000, START_MS + 2001)
        assert [store.offset_at(T, 0, time) for time in asked] == [0, 0, 1, 2, 3]
        assert store.earliest_timestamp(T, 0) == START_MS
        assert (store.offset_at(T, 7, 0), store.earliest_timestamp(T, 7)) == (0, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_consumes_it_and_goes_on_where_it_was(root, kind):
    def consumed(store: MessageStore) -> list[bytes]:
        with store.consume(T, "g", start="first", idle_timeout_s=0.05) as group:
            return [one.body for one in group if one.ack()]

    with open_store(root, kind, threads=True) as store:
        store.put_batch(messages())
        store.wait_dispatched()
        assert consumed(store) == BODIES
        store.put(Message(topic=T, body=b"d"))
        store.wait_dispatched()
        assert consumed(store) == [b"d"]


# --- other doors --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_beside_the_writer_sees_what_is_on_the_disk(root, kind):
    with open_store(root, kind) as store:
        store.put_batch(messages())
        store.wait_dispatched()
        for opened in (
            ReadOnlyStore.open(root, CONFIG),
            MessageStore.open(root, CONFIG, read_only=True),
            BaseStore.open(root, CONFIG, read_only=True),
        ):
            with opened as reader:
                assert bodies(reader) == ([] if kind == "memory" else BODIES)
                assert reader.queues() == ([] if kind == "memory" else [QueueKey(T, 0)])
                if kind != "memory":
                    assert reader.get_raw(T, 0, 0).records == store.get_raw(T, 0, 0).records
                    assert reader.offset_at(T, 0, START_MS + 1) == 3


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("ends", ["close", "abandon"])
def test_whatever_class_opens_it_again_has_recovered_every_queue(root, kind, ends):
    store = open_store(root, kind)
    store.put_batch(messages())
    store.flush()
    getattr(store, ends)()
    with BaseStore.open(root, CONFIG, clock=Clock(), threads=False) as again:
        assert again.recovery.queue_offsets[QueueKey(T, 0)] == 3
        assert bodies(again) == BODIES
        assert again.put(Message(topic=T, body=b"d")).queue_offset == 3
        again.put_batch(messages()).raise_for_status()
    with open_store(root) as store:
        assert bodies(store) == [*BODIES, b"d", *BODIES]
    assert verify_store(root, now_ms=START_MS).findings == []


@pytest.mark.parametrize("kind", KINDS)
def test_import_puts_lines_where_their_consumers_find_them(root, kind, capsys):
    with open_store(root, kind) as store:
        store.put(messages()[0])
    lines = root / "lines.txt"
    lines.write_bytes(b"b\nc\n")
    code = run(["store", "import", str(root), str(lines), "--topic", T])
    with open_store(root) as store:
        if kind == "memory":
            assert (code, IN_MEMORY in capsys.readouterr().err) == (1, True)
            assert store.max_physical_offset == 0
        else:
            assert (code, bodies(store)) == (0, BODIES)
    assert run(["store", "verify", str(root)]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_of_the_sink_puts_rows_where_their_consumers_find_them(root, kind):
    with open_store(root, kind) as store:
        store.put(messages()[0])
    options = sink_options(root, streaming=False)
    job = sink_writer.new_job(options)
    files = stage(options, job, [[{**row, "topic": T, "queueId": 0} for row in rows(5)]])

    def commit() -> object:
        return sink_commit.commit_batch(options, job, files, 0, clock=Clock())

    if kind == "memory":
        with pytest.raises(RefusedMessageError, match=IN_MEMORY):
            commit()
    else:
        commit()
        with open_store(root) as store:
            assert [one[:6] for one in bodies(store)[1:]] == [b"%06d" % n for n in range(5)]
        assert verify_store(root, now_ms=START_MS).findings == []


@pytest.mark.parametrize("kind", ON_DISK)
def test_the_commands_that_read_print_each_message(root, kind, capsys):
    with open_store(root, kind) as store:
        store.put_batch(messages())
    for command in (["tail"], ["get", "-q", "0"]):
        given = [command[0], str(root), "-t", T, *command[1:], "-o", "json"]
        assert run(["message", *given]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert [one["queueOffset"] for one in printed] == [0, 1, 2]
    assert run(["queue", "list", str(root), "-o", "json"]) == 0
    (queue,) = json.loads(capsys.readouterr().out)
    assert (queue["topic"], queue["minOffset"], queue["maxOffset"]) == (T, 0, 3)


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("how", ["repair", "rebuild", "open"])
def test_lost_queues_are_found_and_made_again(root, kind, how):
    with open_store(root, kind) as store:
        for _ in range(20):
            store.put_batch(messages())
    queues = root / ("batchconsumequeue" if kind == "batch" else "consumequeue")
    shutil.rmtree(queues / T)
    assert {one.kind for one in verify_store(root, now_ms=START_MS).findings} == {"queue-missing"}
    assert {one.kind for one in audited(root, now_ms=START_MS).findings} == {"queue-missing"}
    if how == "repair":
        assert repair_store(root, CONFIG, now_ms=START_MS).remaining == []
    elif how == "rebuild":
        assert rebuild_store(root, CONFIG, what="queues", now_ms=START_MS).remaining == []
    with open_store(root) as store:
        assert bodies(store) == BODIES * 20
    assert verify_store(root, now_ms=START_MS).findings == []
    assert audited(root, now_ms=START_MS).findings == []


def test_a_rebuild_keeps_what_was_there(root):
    with open_store(root, "batch") as store:
        store.put_batch(messages())
    before = (root / "batchconsumequeue" / T / "0" / f"{0:020d}").read_bytes()
    report = rebuild_store(root, CONFIG, what="queues", now_ms=START_MS)
    kept = root / str(report.evidence) / "batchconsumequeue" / T / "0" / f"{0:020d}"
    assert kept.read_bytes() == before
    assert (root / "batchconsumequeue" / T / "0" / f"{0:020d}").read_bytes() == before


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_rebuild_on_spark_counts_every_record(root, kind):
    with open_store(root, kind) as store:
        for one in messages():
            store.put(one)
    assert rebuilt_here(root, target=root.with_name("made")).record_count == 3


# --- kinds that are not known ---------------------------------------------------------------------


def test_a_kind_that_is_not_known_is_refused_by_name_at_every_door(root):
    with open_store(root) as store:
        store.put(messages()[0])
    table = {T: {"topicName": T, "attributes": {"queue.type": "TreeCQ"}}}
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    doors: tuple[Callable[[], object], ...] = (
        lambda: MessageStore.open(root, CONFIG),
        lambda: BaseStore.open(root, CONFIG),
        lambda: ReadOnlyStore.open(root, CONFIG),
        lambda: verify_store(root, CONFIG),
        lambda: repair_store(root, CONFIG),
        lambda: audited(root, CONFIG),
        lambda: rebuilt_here(root, target=root.with_name("made")),
    )
    for door in doors:
        with pytest.raises(StoreError, match=r"topic t has queues of the kind TreeCQ.*not known"):
            door()


# --- a kind from outside of the package -----------------------------------------------------------


class LatestLog(MemoryLog):
    """Keeps the last message of each queue."""

    def append(self, counter: Any, records: Any, numbered: None = None) -> PutResult:
        result = super().append(counter, records, numbered)
        queue = self.queues[counter.key]
        while queue.min_offset < queue.max_offset - 1:
            queue.forget_oldest()
        return result


class LatestTopics(TopicKind):
    """Topics of which only the newest message counts: prices, positions, states."""

    name, is_on_disk = "latest", False

    def __init__(self) -> None:
        super().__init__()
        self.log = LatestLog(CONFIG, limit_bytes=1 << 20, clock=Clock())
        limits = PageLimits.from_config(CONFIG)._replace(memory_span_bytes=1 << 61)
        self._pages = Pages(self.log, limits, page_without_entry)

    def claims(self, topic: str, said: Any) -> bool:
        return (said.get("attributes") or {}).get("queue.type") == "Latest"

    def marks(self, said: Any) -> dict[str, Any]:
        return {"attributes": {"queue.type": "Latest"}}

    def queue(self, key: QueueKey) -> Any:
        return self.log.queues.get(key)

    def queue_keys(self) -> list[QueueKey]:
        return list(self.log.queues)

    def pages(self, plain: Any, question: Any) -> Any:
        return self._pages[question]


def test_a_kind_from_outside_of_the_package_is_one_like_any_other(root):
    for _ in range(2):  # made, and found in the table again
        with MessageStore.open(root, CONFIG, threads=False, kinds=[LatestTopics]) as store:
            store.topics_of("latest").create(T)
            assert store.topics_of("latest").names == {T}
            store.put_batch(messages()).raise_for_status()
            assert store.put(Message(topic=T, body=b"d")).queue_offset == 3
            assert (store.min_offset(T, 0), store.max_offset(T, 0)) == (3, 4)
            assert bodies(store) == [b"d"]
            assert store.get(T, 0, 0).next_offset == 3
            with pytest.raises(StoreError, match="t cannot become a batch topic"):
                store.batch_topics.create(T)
            store.put(Message(topic="plain", body=b"p")).raise_for_status()
    with pytest.raises(StoreError, match=r"topic t has queues of the kind Latest.*not known"):
        MessageStore.open(root, CONFIG)
