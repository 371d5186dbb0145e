"""A message as it came over the wire: stored as a prepared one is, whichever way it takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore import Message, MessageStore, PutMessageStatus, StoreConfig
from rocketstore.config import FlushDiskType
from rocketstore.errors import RocketStoreError
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.scan import kernels
from rocketstore.storage.log.prepared import PreparedMessage
from support.clock import Clock
from support.inside import parts_of
from support.memory import memory_directory
from support.patience import PATIENCE_S

OK = PutMessageStatus.PUT_OK
HOST = "127.0.0.1:54321"
BLOCKS = [
    b"", b"KEYS\x01k\x02TAGS\x01t", b"KEYS\x01k\x02", b"DELAY\x013", b"WAIT\x01false", b"nothing",
    b"INNER_MULTI_DISPATCH\x01a", b"k\x01\xff", "ü\x01é".encode(), b"k\x01v\x00", b"\x01v",
    b"k\x01" + b"v" * 32_400, b"k\x01" + b"v" * 33_000,
]  # fmt: skip
FIELDS = {
    "flag": st.sampled_from([0, -1, 7, 2**31, None]),
    "sys_flag": st.sampled_from([0, 1, 4, 8, 0x10, 0x80, -1]),
    "born_timestamp_ms": st.sampled_from([None, 0, 17, 2**63]),
    "born_host": st.sampled_from([HOST, "[::1]:1", "nobody", ""]),
    "reconsume_times": st.sampled_from([0, 3, -(2**40)]),
}


@pytest.fixture(scope="module")
def stores():
    """Two stores with a first message in the queue, for which a put takes the slow way."""
    with memory_directory() as root:
        made = []
        for name in ("one", "other"):
            config = StoreConfig.small(message_delay_level="1s 1m 1h")
            made.append(MessageStore.open(root / name, config, clock=Clock(), threads=False))
            assert made[-1].put_encoded("t", 0, b"first", born_host=HOST).status is OK
        yield made
        for store in made:
            store.close()


def outcome(put):
    try:
        result = put()
    except RocketStoreError as error:
        return type(error), str(error)
    return result.status, result.queue_offset, result.physical_offset, result.size, result.detail


@given(
    st.sampled_from(["t", "another", "", "..", "ü"]), st.integers(-1, 2),
    st.sampled_from([b"", b"body", b"x" * 4000, bytearray(b"y"), "text", None]),
    st.sampled_from(BLOCKS) | st.binary(max_size=9), st.fixed_dictionaries({}, optional=FIELDS),
)  # fmt: skip
def test_it_is_stored_as_a_prepared_message(stores, topic, queue_id, body, block, fields):
    one, other = stores
    at = one.appended_physical_offset
    prepared = lambda: PreparedMessage(topic, body, block, **fields)  # noqa: E731 - refuses too
    found = outcome(lambda: one.put_encoded(topic, queue_id, body, block, **fields))
    assert found == outcome(lambda: other.put_prepared(prepared(), None, queue_id))
    if found[0] is OK:
        records = [store.at_physical_offset(at) for store in stores]
        assert records[0] == records[1]
        assert one.appended_physical_offset == other.appended_physical_offset


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("fields", [{}, {"sys_flag": 8}, {"reconsume_times": 3}])
def test_whichever_block_a_plain_one_has_it_is_stored_as_a_prepared_message(stores, block, fields):
    """Among random fields few are all plain, as those of the compiled way are."""
    test_it_is_stored_as_a_prepared_message.hypothesis.inner_test(
        stores, "t", 0, b"body", block, fields | {"born_host": HOST}
    )


@pytest.mark.skipif(not kernels.is_compiled(), reason="interpreted, all is left to the writer")
def test_a_plain_one_makes_no_prepared_message(stores, monkeypatch):
    monkeypatch.delattr(type(parts_of(stores[0]).log), "append")
    result = stores[0].put_encoded("t", 0, b"x", b"KEYS\x01k", born_host=HOST)
    monkeypatch.undo()
    assert result.status is OK
    assert stores[1].put_encoded("t", 0, b"x", b"KEYS\x01k", born_host=HOST).status is OK


@pytest.mark.skipif(not kernels.is_compiled(), reason="interpreted, all is left to the writer")
@pytest.mark.parametrize("kind", ["message", "prepared", "encoded", "batch"])
def test_one_that_does_not_wait_for_its_sync_needs_no_slow_way_and_is_synced_soon(
    tmp_path, monkeypatch, kind
):
    """It is how a broker puts with SYNC_FLUSH: one sync then answers for many."""
    message = Message(topic="t", body=b"x", born_host=HOST, wait_flush=False)
    with MessageStore.open(
        tmp_path / "store", StoreConfig.small(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    ) as store:
        assert store.put(Message(topic="t", body=b"first", born_host=HOST)).status is OK
        prepared, batch = PreparedMessage.of(message), encode_client_batch([(0, b"x", b"")])
        ways = {
            "message": lambda: store.put(message),
            "prepared": lambda: store.put_prepared(prepared),
            "encoded": lambda: store.put_encoded("t", 0, b"x", born_host=HOST, wait_flush=False),
            "batch": lambda: store.put_client_batch(
                "t", 0, batch, born_host=HOST, wait_flush=False
            ),
        }
        with monkeypatch.context() as without:
            without.delattr(type(parts_of(store).log), "append")
            result = ways[kind]()
        assert (result.status, result.queue_offset) == (OK, 1)
        assert store.wait_for("t", 0, 1, timeout_s=PATIENCE_S)  # only what is synced is read
