"""The same puts at the same times leave the same bytes that the genuine store left."""

import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rocketstore.errors import RefusedMessageError
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.host import encode_host
from rocketstore.format.record import host_flags
from rocketstore.format.stored_message import StoredMessage
from rocketstore.message import TRANSACTION_MASK, Message
from rocketstore.message_store import MessageStore
from rocketstore.native.log_end import Record
from rocketstore.storage.log.prepared import PreparedMessage
from rocketstore.storage.results import PutResult
from support.clock import Clock
from support.configured_store import small_config
from support.extended_store import golden_bit_maps
from support.golden_stores import golden_store
from support.inside import parts_of
from support.oracle.record import decode_record

LOG_FILE_BYTES = 65_536
SMALL = small_config()


class Replay:
    """Puts the messages of a golden store again."""

    def __init__(self, root: Path, case: str) -> None:
        golden, facts = golden_store(case)
        records = facts["records"]
        self.messages = [
            golden_message(golden, record["phy"]) for record in records if record["type"] == "msg"
        ]
        self.clock = Clock(0)
        # Of no effect on what names no further queues.
        config = msgspec.structs.replace(SMALL, enable_multi_dispatch=True, enable_lmq=True)
        if has_units := case == "cqext":
            config = msgspec.structs.replace(
                config, enable_consume_queue_ext=True, enable_calc_filter_bit_map=True,
                mapped_file_size_consume_queue_ext=4096,
            )  # fmt: skip
        self.store = MessageStore.open(root, config, clock=self.clock, threads=False)
        if has_units:
            bit_maps = golden_bit_maps()
            extensions: Any = parts_of(self.store).queues.make_extension
            extensions.filters = SimpleNamespace(
                bit_map=lambda _topic, properties: bit_maps[properties]
            )

    def put_all(self, puts: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], PutResult]]:
        """Yield each put of the manifest that stored something, with our result of the same."""
        at = 0
        for put in puts:
            if put.get("append") != "PUT_OK":
                continue
            messages = self.messages[at : at + put["msgNum"]]
            at += put["msgNum"]
            self._prepare_for(messages[0])
            yield put, self._put_batch(messages) if len(messages) > 1 else self._put(messages[0])
        assert at == len(self.messages)

    def _prepare_for(self, message: StoredMessage) -> None:
        self.clock.now_ms = message.store_timestamp_ms
        # A 4.9 store takes its host from each message, ours from its settings.
        host = encode_host(message.store_host)
        parts_of(self.store).log.end.store_host = host
        self.store._writer._host_bits = host_flags(b"", host)
        self.store._writer._born_hosts.clear()

    def _put(self, message: StoredMessage) -> PutResult:
        # What waits or has waited, and what only a store of old had prepared or rolled back.
        if "REAL_TOPIC" in message.properties or message.sys_flag & TRANSACTION_MASK:
            return self.store.put_record(message.topic, message.queue_id, record_of(message))
        prepared = PreparedMessage(
            message.topic,
            message.raw_body,
            message.raw_properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
        return self.store.put_prepared(prepared, queue_id=message.queue_id)

    def _put_batch(self, messages: list[StoredMessage]) -> PutResult:
        first = messages[0]
        batch = encode_client_batch(
            (message.flag, message.raw_body, message.raw_properties) for message in messages
        )
        return self.store.put_client_batch(
            first.topic,
            first.queue_id,
            batch,
            sys_flag=first.sys_flag,
            born_timestamp_ms=first.born_timestamp_ms,
            born_host=first.born_host,
            reconsume_times=first.reconsume_times,
        )


def record_of(message: StoredMessage) -> Record:
    """Return what a service of the store puts: delay, commit or check."""
    return Record(
        message.raw_body,
        message.raw_properties,
        encode_host(message.born_host),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_transaction_offset,
    )


def golden_message(golden: Path, physical_offset: int) -> StoredMessage:
    """Return what stands in the genuine store's log; the manifest has no large bodies."""
    base = physical_offset - physical_offset % LOG_FILE_BYTES
    content = _content(golden / "commitlog" / f"{base:020d}")
    return decode_record(content, physical_offset - base, base=base)


@functools.cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.parametrize(
    "case",
    [
        "basic", "ipv6", "batch", "expired/base", "multidispatch", "transactions", "cqext",
        "broker",
    ],
)  # fmt: skip
def test_the_same_puts_leave_the_same_log_queues_and_results(tmp_path, case):
    golden, facts = golden_store(case)
    replay = Replay(tmp_path, case)
    puts = facts.get("puts") or single_puts(facts["records"])
    for theirs, ours in replay.put_all(puts):
        assert ours.physical_offset == theirs["wroteOffset"]
        assert ours.size == theirs["wroteBytes"]
        assert ours.queue_offset == theirs["queueOffset"]
        assert ours.message_id == theirs["msgId"]
        assert ours.message_count == theirs["msgNum"]
    replay.store.close()
    assert_same_files(tmp_path, golden, "commitlog")
    assert_same_files(tmp_path, golden, "consumequeue")
    assert_same_files(tmp_path, golden, "consumequeue_ext")


def single_puts(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each put must have answered, for a case that does not say."""
    return [
        {
            "append": "PUT_OK",
            "msgNum": 1,
            "wroteOffset": record["phy"],
            "wroteBytes": record["size"],
            "queueOffset": record["queueOffset"],
            "msgId": record["msgId"],
        }
        for record in records
        if record["type"] == "msg"
    ]


def assert_same_files(ours: Path, theirs: Path, directory: str) -> None:
    names = [
        {path.relative_to(root): path for path in (root / directory).rglob("*") if path.is_file()}
        for root in (ours, theirs)
    ]
    assert set(names[0]) == set(names[1])
    for name, path in names[0].items():
        assert path.read_bytes() == names[1][name].read_bytes(), name


def test_what_the_genuine_store_refuses_in_a_batch_is_refused(tmp_path):
    with MessageStore.open(tmp_path, SMALL, threads=False) as store:
        for special in ({"DELAY": "3"}, {"INNER_MULTI_DISPATCH": "a,b"}):
            message = Message(topic="orders", properties=special)
            with pytest.raises(RefusedMessageError):
                store.put_batch([message, message])
        with pytest.raises(RefusedMessageError):
            store.put_client_batch("orders", 0, encode_client_batch([(0, b"", b"")]), sys_flag=4)
        assert store.max_physical_offset == 0
