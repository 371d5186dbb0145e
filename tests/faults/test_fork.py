"""A forked child cannot use the store of its parent, and its parent does not notice."""

import multiprocessing
import os
import signal

import pytest

from rocketstore import (
    FlushDiskType,
    Message,
    MessageStore,
    StoreClosedError,
    StoreConfig,
    StoreForkedError,
    StoreLockedError,
)
from rocketstore.units import QueueKey
from support.configured_store import small_config
from support.descriptors import open_sockets
from support.forked import LIMIT_S, in_child
from support.inside import parts_of, workers_of
from support.ports import free_port
from support.public_calls import MESSAGE, USES
from support.python_process import run_python
from support.replicas import address_of, open_master, open_slave, put_many, wait_for_slave
from support.trees import tree

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def config_of(flush: FlushDiskType) -> StoreConfig:
    return small_config(mapped_file_size_commit_log=4096, flush_disk_type=flush)


def refuse_all(store: MessageStore) -> None:
    for name, use in USES.items():
        with pytest.raises(StoreForkedError, match=f"opened by process {os.getppid()}"):
            raise AssertionError(f"{name} returned {use(store)!r}")
    assert store.is_closed
    store.close()
    store.abandon()
    store.__exit__(None, None, None)  # of a block in which the parent forked


def put_some(store: MessageStore, count: int) -> list[int]:
    offsets = []
    for number in range(count):
        result = store.put(Message(topic="t", body=b"parent %d" % number, keys="k"))
        assert result.is_stored
        offsets.append(result.physical_offset)
    return offsets


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("threads", [False, True])
def test_a_child_is_refused_everything_and_touches_nothing(flush, tmp_path, *, threads):
    with MessageStore.open(tmp_path, config_of(flush), threads=threads) as store:
        offsets = put_some(store, 50)
        store.flush()
        before = tree(tmp_path)
        in_child(lambda: refuse_all(store))
        after = tree(tmp_path)
        if threads:  # the parent's own may have made a file ahead, or moved the checkpoint
            before = {path: data for path, data in before.items() if "checkpoint" not in path}
            after = {path: after[path] for path in before}
        assert after == before
        offsets += put_some(store, 50)
        assert store.wait_dispatched(timeout_s=LIMIT_S)
    with MessageStore.open(tmp_path, config_of(flush)) as store:
        assert len(offsets) == len(set(offsets)) == store.max_offset("t", 0) == 100
        assert all(store.at_physical_offset(offset) is not None for offset in offsets)


def test_what_was_taken_from_a_store_before_the_fork_is_refused_too(tmp_path):
    config = config_of(FlushDiskType.ASYNC_FLUSH)
    with MessageStore.open(tmp_path, config, threads=False) as store:
        put_some(store, 3)
        put, writer = store.put, store._writer
        before = tree(tmp_path)

        def use() -> None:
            for taken in (lambda: put(MESSAGE), lambda: writer.put(MESSAGE)):
                with pytest.raises(StoreForkedError):
                    taken()

        in_child(use)
        assert tree(tmp_path) == before


def test_a_fork_while_other_threads_hold_locks_leaves_no_child_waiting(tmp_path):
    with MessageStore.open(tmp_path, config_of(FlushDiskType.ASYNC_FLUSH)) as store:
        put_some(store, 3)
        parts, workers = parts_of(store), workers_of(store)
        with parts.log.lock, workers.flusher._flushing, store.statistics._lock:
            in_child(lambda: refuse_all(store))
        put_some(store, 3)


def test_a_child_may_open_the_store_once_the_parent_let_go(tmp_path):
    config = config_of(FlushDiskType.ASYNC_FLUSH)
    store = MessageStore.open(tmp_path, config)
    put_some(store, 3)

    def open_too_early() -> None:
        with pytest.raises(StoreLockedError) as caught:
            MessageStore.open(tmp_path, config)
        assert caught.value.owner_pid == os.getppid()

    in_child(open_too_early)
    read_end, write_end = os.pipe()

    def open_later() -> None:
        os.read(read_end, 1)
        with MessageStore.open(tmp_path, config) as own:
            put_some(own, 3)
            store.close()  # the parent's: has nothing to do with the own one
            put_some(own, 3)

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(LIMIT_S)
            open_later()
            status = 0
        finally:
            os._exit(status)
    store.close()
    os.write(write_end, b"x")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(read_end)
    os.close(write_end)
    with MessageStore.open(tmp_path, config) as again:
        assert again.max_offset("t", 0) == 9


def test_a_store_that_was_closed_says_so_in_a_child_as_well(tmp_path):
    store = MessageStore.open(tmp_path, config_of(FlushDiskType.ASYNC_FLUSH))
    store.close()

    def use() -> None:
        with pytest.raises(StoreClosedError, match="was closed"):
            store.get("t", 0, 0)
        store.close()

    in_child(use)


def _put_in_worker(store: MessageStore, answers: "multiprocessing.SimpleQueue[str]") -> None:
    try:
        store.put(MESSAGE)
    except StoreForkedError as error:
        answers.put(str(error))
    else:
        answers.put("stored")
    store.close()


def test_a_worker_of_multiprocessing_is_told_what_to_do(tmp_path):
    context = multiprocessing.get_context("fork")
    with MessageStore.open(tmp_path, config_of(FlushDiskType.SYNC_FLUSH)) as store:
        put_some(store, 3)
        answers = context.SimpleQueue()
        worker = context.Process(target=_put_in_worker, args=(store, answers))
        worker.start()
        answer = answers.get()
        worker.join(LIMIT_S)
        assert worker.exitcode == 0
        assert f"opened by process {os.getpid()}" in answer
        assert "open it after the fork, in the process that uses it" in answer
        put_some(store, 3)
        assert store.next_queue_offset("t", 0) == 6


def test_a_child_does_not_wait_for_the_pool(tmp_path):
    config = StoreConfig.small(transient_store_pool_enable=True, transient_store_pool_size=2)
    with MessageStore.open(tmp_path, config, threads=False) as store:
        put_some(store, 3)
        with parts_of(store).log._committing:
            in_child(lambda: refuse_all(store))


def test_a_child_has_no_socket_of_replication(tmp_path):
    before = open_sockets()
    with (
        open_master(tmp_path / "master") as master,
        open_slave(tmp_path / "slave", address_of(master)) as slave,
    ):
        put_many(master, 10)
        wait_for_slave(master, slave)

        def look() -> None:
            assert open_sockets() <= before

        in_child(look)
        put_many(master, 10)
        wait_for_slave(master, slave)


PROGRAM = """
import logging, os, sys
logging.getLogger("asyncio").setLevel(logging.ERROR)  # not that a turn was slow on a busy machine
from rocketstore import Message, MessageStore, StoreConfig
config = StoreConfig.small(
    retention=True, scrub_bytes_per_second=1000, metrics_port=int(sys.argv[2]), ha_listen_port=0,
    transient_store_pool_enable=True, transient_store_pool_size=2, memory_topic_enable=True,
)
with MessageStore.open(sys.argv[1], config) as store:
    store.check_transactions(lambda half: None)
    for number in range(5):
        store.put_async(Message(topic="t", body=b"x", properties={"DELAY": "1"})).result()
        if not (pid := os.fork()):
            sys.exit()
        assert os.waitpid(pid, 0)[1] == 0
    assert store.wait_for("t", 0, 4, timeout_s=60)
    print(store.max_offset("t", 0))
"""


def test_a_child_that_exits_as_programs_do_disturbs_nobody(tmp_path):
    options = ("-X", "dev", "-W", "ignore::DeprecationWarning")
    done = run_python(*options, "-c", PROGRAM, tmp_path, free_port())
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")


@pytest.mark.parametrize("is_open_elsewhere", [False, True])
def test_a_read_only_store_goes_on_in_a_child(tmp_path, *, is_open_elsewhere):
    config = config_of(FlushDiskType.ASYNC_FLUSH)
    with MessageStore.open(tmp_path, config) as store:
        put_some(store, 3)
    writer = MessageStore.open(tmp_path, config) if is_open_elsewhere else None
    with MessageStore.open(tmp_path, config, read_only=True) as reader:

        def read() -> None:
            page = reader.get("t", 0, 0)
            assert [message.body for message in page.messages] == [
                b"parent 0", b"parent 1", b"parent 2",
            ]  # fmt: skip
            assert len(reader.find("t", "k")) == 3

        read()
        queue = reader._pread_log.queues.get(QueueKey("t", 0))
        assert queue is not None
        with reader._pread_log._lock, queue._lock:  # as another thread may at a fork
            in_child(read)
        read()
    if writer is not None:
        writer.close()


def test_a_consumer_of_the_parent_takes_and_acknowledges_nothing_in_a_child(tmp_path):
    with MessageStore.open(tmp_path, config_of(FlushDiskType.ASYNC_FLUSH)) as store:
        store.put_batch([MESSAGE] * 3)
        store.wait_dispatched()
        consumer = store.consume("t", "g")
        message = next(consumer)

        def work() -> None:
            with pytest.raises(StoreForkedError):
                consumer.poll()
            with pytest.raises(StoreForkedError):
                store.consume("t", "g")
            assert list(consumer) == []
            assert not message.ack()
            assert not message.give_back()
            assert isinstance(store.put_async(MESSAGE).exception(0), StoreForkedError)
            consumer.close()

        with consumer._group._lock:  # as another thread may hold it when the process forks
            in_child(work)
        assert message.ack()
        assert store.consumer_offsets.get("t", "g", 0) == 1
