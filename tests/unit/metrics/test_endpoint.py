"""The endpoint for Prometheus: off by default, real values over HTTP, a port that is freed."""

import asyncio
import contextlib
import errno
import gc
import itertools
import json
import os
import re
import select
import selectors
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rocketstore import FlushDiskType, Message, MessageStore, StoreConfig
from rocketstore.errors import RocketStoreError, SystemRefusedError
from rocketstore.metrics import http_server
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.statistics import BUCKET_NAMES, PUT_LIMITS_S
from support.failing_calls import FailingCalls, Fault
from support.inside import parts_of
from support.patience import PATIENCE_S, wait_until
from support.ports import free_port
from support.python_process import printed
from support.repository import ROOT

ORDER = Message(topic="orders", body=b"x" * 10)
EXPORTER = "/metrics/exporter"
BOARD = ROOT / "docs" / "guide" / "grafana-board.json"


def open_served(root: Path, **settings: Any) -> MessageStore:
    config = StoreConfig.small(**{"metrics_port": free_port(), **settings})
    return MessageStore.open(root, config)


def ask(store: MessageStore, path: str, data: bytes | None = None) -> str:
    """Return an answer's text; `HTTPError` for one that is no 200."""
    place = urllib.parse.SplitResult(
        "http", f"127.0.0.1:{store.config.metrics_port}", path, query="", fragment=""
    )
    with urllib.request.urlopen(place.geturl(), data=data, timeout=PATIENCE_S) as answer:  # noqa: S310
        text: str = answer.read().decode()
    return text


def scrape(store: MessageStore, path: str = "/metrics") -> dict[tuple[str, str], float]:
    """Return values by name and first label (by name only where there are none)."""
    text = ask(store, path)
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_values_move_with_puts_and_gets(root):
    with open_served(root) as store:
        before = scrape(store)
        assert ("rocketmq_messages_in_total", "orders") not in before
        for _ in range(3):
            store.put(ORDER)
        store.wait_dispatched()
        store.flush()
        store.get("orders", 0, 0)
        store.get("orders", 0, 3)
        after = scrape(store)
        assert after["rocketmq_messages_in_total", "orders"] == 3
        assert after["rocketmq_throughput_in_total", "orders"] == store.max_physical_offset
        assert after["rocketmq_storage_size", ""] == store.max_physical_offset
        assert after["rocketmq_messages_out_total", ""] == 3
        assert after["rocketstore_gets_total", "found"] == 1
        assert after["rocketstore_gets_total", "missed"] == 1
        assert after["rocketstore_put_seconds_bucket", "+Inf"] == 3
        assert after["rocketmq_storage_flush_behind_bytes", ""] == 0
        assert after["rocketmq_storage_dispatch_behind_bytes", ""] == 0
        assert after["rocketstore_dispatch_well", ""] == 1


def test_names_of_the_exporter_say_the_same_as_runtime_info(root):
    with open_served(root, store_host="10.0.0.9:10911") as store:
        store.put(ORDER)
        store.wait_dispatched()
        store.flush()
        store.disk.room = lambda _path: (9, 2, 4)
        found = {name: value for (name, _), value in scrape(store, EXPORTER).items()}
        info = store.runtime_info()
        times = store.statistics.put_time_histogram()
        assert set(re.findall('brokerIP="(.*?)"', ask(store, EXPORTER))) == {"10.0.0.9:10911"}
    prefix = "rocketmq_brokeruntime_"
    assert found[prefix + "commitlog_maxoffset"] == float(info["commitLogMaxOffset"])
    assert found[prefix + "put_message_size_total"] == float(info["putMessageSizeTotal"])
    assert found[prefix + "putmessage_times_total"] == 1
    assert found[prefix + "dispatch_behind_bytes"] == 0
    assert found[prefix + "earliest_message_timestamp"] == float(info["earliestMessageTimeStamp"])
    assert found[prefix + "commitlogdir_capacity_total"] == 9
    assert found[prefix + "commitlogdir_capacity_free"] == 4, "the rest is kept for others"
    assert 0 <= found[prefix + "put_latency_99"] <= found[prefix + "put_latency_999"]
    assert found[prefix + "remain_howmanydata_toflush"] == 0
    told = {name: value for name, value in found.items() if "_pmdt_" in name}
    assert [*told.values()] == [*times.values()], "one put, and how long it took"
    assert [*told][::12] == [f"{prefix}pmdt_0ms", f"{prefix}pmdt_10stomore"]
    assert {f"{prefix}put_tps{span}" for span in (10, 60, 600)} <= found.keys()
    unknown = re.compile("threadpool|queue_size|_client_|day_|online|consume_tps|accept_send")
    assert not [name for name in found if unknown.search(name)], "what only a broker knows"
    assert len(PUT_LIMITS_S) == len(BUCKET_NAMES)


def test_topics_and_groups_have_the_names_of_the_exporter(root):
    with open_served(root) as store:
        for topic in ("orders", "orders", "payments", "%RETRY%billing", "%DLQ%billing"):
            store.put(Message(topic=topic, body=b""), queue_id=0)
        store.put(ORDER, queue_id=1)
        store.wait_dispatched()
        for topic, offset in (("orders", 1), ("%RETRY%billing", 0), ("%DLQ%billing", 0)):
            store.consumer_offsets.set(topic, "billing", 0, offset)
        text = ask(store, EXPORTER)
    labels = {"cluster": "DefaultCluster", "broker": socket.gethostname()}
    found = {
        (sample.name.removeprefix("rocketmq_"), *sorted(sample.labels.items() - labels.items()))
        : sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("rocketmq_broker")
    }  # fmt: skip
    group = ("group", "billing")
    retries, dead = ("topic", "%RETRY%billing"), ("topic", "%DLQ%billing")
    assert found == {
        ("producer_offset", ("topic", "orders")): 3,
        ("producer_offset", ("topic", "payments")): 1,
        ("topic_retry_offset", retries): 1,
        ("topic_dlq_offset", group): 1,
        ("group_diff", group, ("topic", "orders")): 1,
        ("group_retrydiff", group, retries): 1,
        ("group_dlqdiff", group, dead): 1,
        ("consumer_offset", group, ("topic", "orders")): 1,
        ("consumer_offset", group, retries): 0,
        ("consumer_offset", group, dead): 0,
    }


def test_a_pool_s_free_buffers_and_what_a_kill_would_take_are_metrics(root):
    name = "rocketstore_transient_pool_{}".format
    with open_served(root) as store:
        assert not [key for key, _ in scrape(store) if key.startswith(name(""))]
    with open_served(root, transient_store_pool_enable=True, transient_store_pool_size=3) as store:
        assert scrape(store)[name("free_buffers"), ""] == 3
        with parts_of(store).log._committing:  # nothing is committed meanwhile
            end = sum(store.put(ORDER).size for _ in range(2))
            found = scrape(store)
            assert found[name("uncommitted_bytes"), ""] == end
            assert found[name("free_buffers"), ""] == 2
            assert found["rocketmq_storage_size", ""] == 0
            exported = {key: value for (key, _), value in scrape(store, EXPORTER).items()}
            assert exported["rocketmq_brokeruntime_remain_transientstore_buffer_numbs"] == 2
        store.flush()
        assert scrape(store)[name("uncommitted_bytes"), ""] == 0
        assert scrape(store)["rocketmq_storage_size", ""] == end


def test_the_log_is_as_large_as_what_retention_left_of_it(root):
    with open_served(root, mapped_file_size_commit_log=4096) as store:
        while store.max_physical_offset < 9000:
            store.put(ORDER)
    (root / "commitlog" / f"{0:020}").unlink()
    with open_served(root, mapped_file_size_commit_log=4096) as store:
        assert scrape(store)["rocketmq_storage_size", ""] == store.max_physical_offset - 4096


def test_how_old_the_oldest_message_is_that_a_group_has_not_consumed(root):
    now_ms = 1_700_000_000_000
    config = StoreConfig.small(metrics_port=free_port())
    with MessageStore.open(root, config, clock=lambda: now_ms) as store:
        for queue_id in (0, 0, 1, 1):
            store.put(ORDER, queue_id=queue_id)
            now_ms += 1000
        store.wait_dispatched()
        for queue_id, offset in ((0, 1), (1, 0)):
            store.consumer_offsets.set("orders", "billing", queue_id, offset)
        assert scrape(store)["rocketmq_consumer_lag_latency", "billing"] == 3000
        store.consumer_offsets.set("orders", "billing", 0, 2)
        assert scrape(store)["rocketmq_consumer_lag_latency", "billing"] == 2000
        store.consumer_offsets.set("orders", "billing", 1, 2)
        assert scrape(store)["rocketmq_consumer_lag_latency", "billing"] == 0


def test_damage_that_is_known_is_a_metric(root):
    known = {
        "physicalOffset": 7, "size": 93, "reason": "bad crc", "evidence": "",
        "file": "0", "foundTimestamp": 1,
    }  # fmt: skip
    (root / "damage-map.json").write_text(json.dumps({"passes": 4, "damage": [known]}))
    with open_served(root) as store:
        found = scrape(store)
    assert found["rocketstore_store_damaged_bytes", "bad crc"] == 93
    assert found["rocketstore_audit_findings", "log-damage"] == 1
    assert found["rocketstore_store_scrub_passes", ""] == 4


def test_what_the_open_found_wrong_is_a_finding_by_the_kinds_of_verify(root):
    with open_served(root) as store:
        store.put(ORDER)
        store.wait_dispatched()
    (root / "commitlog" / "junk").write_bytes(b"x")
    (root / "consumequeue" / "orders" / "0" / "junk").write_bytes(b"x")
    (root / "index").mkdir(exist_ok=True)
    (root / "index" / "junk").write_bytes(b"x")
    with open_served(root) as store:
        found = scrape(store)
    for kind in ("log-wrong-name", "queue-wrong-name", "index-wrong-name"):
        assert found["rocketstore_audit_findings", kind] == 1


@pytest.mark.parametrize("mode", FlushDiskType)
def test_each_sync_of_the_log_is_timed_once(root, mode):
    synced: list[Path] = []

    class CountingDisk(Disk):
        def fdatasync(self, descriptor: int, path: Path) -> None:
            super().fdatasync(descriptor, path)
            synced.append(path)

    config = StoreConfig.small(metrics_port=free_port(), flush_disk_type=mode)
    first = root / "commitlog" / f"{0:020}"
    with MessageStore.open(root, config, disk=CountingDisk()) as store:
        store.put(ORDER)
        store.flush()
        # The file that was made for it was synced too, which nobody waits for but the first put.
        apart = synced.count(first) - scrape(store)["rocketstore_flush_seconds_count", ""]
        for _ in range(5):
            store.put(ORDER)
            store.flush()
        found, syncs = scrape(store), synced.count(first) - apart
        assert syncs >= 6
        assert found["rocketstore_flush_seconds_count", ""] == syncs
        assert found["rocketstore_flush_seconds_bucket", "+Inf"] == syncs
        assert 0 < found["rocketstore_flush_seconds_sum", ""] < 60


def test_syncs_that_compiled_code_does_by_itself_are_timed(root):
    with open_served(root, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        for number in range(1, 4):
            store.put(ORDER)
            assert scrape(store)["rocketstore_flush_seconds_count", ""] == number


def test_a_group_s_lag_is_a_metric_and_a_broken_table_of_offsets_costs_only_that(root):
    with open_served(root) as store:
        for number in range(5):
            store.put(ORDER, queue_id=number % 2)
        store.wait_dispatched()
        store.consumer_offsets.set("orders", "billing", 0, 1)
        store.consumer_offsets.set("orders", "billing", 1, 9)
        assert scrape(store)["rocketmq_consumer_lag_messages", "billing"] == 2
    (root / "config" / "consumerOffset.json").write_text("{")
    (root / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
    with open_served(root) as store:
        found = scrape(store)
        assert ("rocketmq_consumer_lag_messages", "billing") not in found
        assert found["rocketmq_storage_size", ""] == store.max_physical_offset


def test_it_is_off_unless_a_port_is_set(root):
    with MessageStore.open(root, StoreConfig.small()) as store:
        assert store.config.metrics_port == 0
        assert store.metrics.port is None


def test_only_this_machine_is_served_unless_a_host_is_set(root):
    with open_served(root) as store:
        assert store.metrics._server.listener.getsockname()[0] == "127.0.0.1"
    everywhere = "0.0.0.0"  # noqa: S104 - what is tested
    with open_served(root, metrics_host=everywhere) as store:
        assert store.metrics._server.listener.getsockname()[0] == everywhere
        assert scrape(store)


def test_close_frees_the_port_and_wakes_nobody_before(root, monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 600)
    store = open_served(root)
    port = store.config.metrics_port
    scrape(store)
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 60  # of 600 s
    assert not is_listening(port)
    with open_served(root, metrics_port=port) as store:
        assert scrape(store)


def test_a_port_in_use_is_a_typed_error_and_leaves_the_store_closed(root):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SystemRefusedError, match=f"127.0.0.1:{port}.*metricsPort"):
            open_served(root, metrics_port=port)
    with open_served(root, metrics_port=port) as store:
        assert scrape(store)


def test_an_address_of_another_machine_is_a_typed_error(root):
    for host in ("192.0.2.1", "no.such.host.invalid", "::1:2:3:4:5:6:7:8:9"):
        with pytest.raises(SystemRefusedError, match="cannot serve metrics"):
            open_served(root, metrics_host=host)


def test_what_is_needed_to_serve_is_imported_only_to_serve():
    code = "import sys, rocketstore.message_store as m; print(*sys.modules)"
    modules = printed(code).split()
    assert not {"prometheus_client", "wsgiref", "http.server", "asyncio"} & set(modules)


def test_other_paths_and_methods_are_refused(root):
    with open_served(root) as store:
        for path, data, status in (("/", None, 404), ("/metrics", b"x", 405)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(store, path, data)
            assert caught.value.code == status
            caught.value.close()
        assert scrape(store)


def test_a_failure_while_values_are_taken_is_an_answer_and_not_the_end(root, monkeypatch, capfd):
    with open_served(root) as store:
        for error, status in ((RocketStoreError("is closed"), 503), (KeyError("x"), 500)):

            def fail(error: Exception = error) -> dict[str, str]:
                raise error

            monkeypatch.setattr(store.statistics, "metrics", fail)
            with pytest.raises(urllib.error.HTTPError) as caught:
                scrape(store)
            assert caught.value.code == status
            caught.value.close()
            monkeypatch.undo()
            assert scrape(store)
    assert capfd.readouterr().err == ""


@contextlib.contextmanager
def peers_of(store: MessageStore) -> Iterator[Callable[[], socket.socket]]:
    """Let a test connect, and hang up for it at last."""
    address = ("127.0.0.1", store.config.metrics_port)
    with contextlib.ExitStack() as peers:
        yield lambda: peers.enter_context(socket.create_connection(address, timeout=30))


def wait_for_hang_ups(peers: list[socket.socket], count: int) -> None:
    hung_up = select.poll()  # which takes descriptors beyond 1,024 too
    for one in peers:
        hung_up.register(one, select.POLLIN)
    wait_until(lambda: len(hung_up.poll(1000)) >= count)


def test_peers_that_send_garbage_or_nothing_hold_nobody_up(root, monkeypatch, capfd):
    monkeypatch.setattr(http_server, "MOST_PEERS", 4)
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 10 * PATIENCE_S)  # none is just slow
    with open_served(root) as store, peers_of(store) as peer:
        for garbage in (b"\x16\x03\x01\x02", b"GET\r\n\r\n", b"A" * 70_000 + b"\r\n"):
            with contextlib.suppress(ConnectionError):  # it hung up before all was sent
                peer().sendall(garbage)
        silent = [peer() for _ in range(4)]
        assert scrape(store)
        silent += [peer() for _ in range(9)]
        assert scrape(store)
        wait_for_hang_ups(silent[:9], 9)  # the oldest
        assert scrape(store)
    assert capfd.readouterr().err == ""


def is_heard(peer: socket.socket) -> bool:
    """Whether something has come within a moment; of a descriptor of any number."""
    heard = select.poll()
    heard.register(peer, select.POLLIN)
    return bool(heard.poll(10))


def test_a_request_has_its_time_as_a_whole_however_often_a_byte_of_it_comes(root, monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.3)
    with open_served(root) as store, peers_of(store) as peer:
        slow, deadline = peer(), time.monotonic() + PATIENCE_S
        with contextlib.suppress(ConnectionError):
            while not is_heard(slow):
                slow.sendall(b"x")
                assert time.monotonic() < deadline
        monkeypatch.undo()  # a busy machine may need longer for an answer
        assert scrape(store)


def test_a_peer_that_takes_nothing_of_its_answer_is_hung_up_on(root, monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.3)
    with open_served(root) as store, peers_of(store) as peer:
        store.metrics._server.get_app = lambda: (
            lambda _environ, start: (start("200 OK", []), [bytes(1 << 25)])[1]
        )
        slow = peer()
        slow.sendall(b"GET / HTTP/1.0\r\n\r\n")
        wait_for_hang_ups([slow], 1)
        wait_until(lambda: not store.metrics._server._peers)


def test_without_descriptors_it_pauses_and_answers_when_there_are_some(root, monkeypatch):
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.2)
    accept, tries, are_out = socket.socket.accept, [], True

    def refused(listener: socket.socket) -> Any:
        if are_out:
            tries.append(time.monotonic())
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    with open_served(root) as store:
        monkeypatch.setattr(socket.socket, "accept", refused)
        with peers_of(store) as peer:
            peer()
            while len(tries) <= 2 * http_server._BACKLOG:
                time.sleep(0.01)
        assert tries[-1] - tries[0] > 0.15  # after a pause asyncio may try more than once
        are_out = False
        assert scrape(store)


# What asyncio was just accepting goes with the garbage.
@pytest.mark.filterwarnings("ignore:unclosed (transport|<socket):ResourceWarning")
def test_they_are_served_again_after_an_error_of_their_loop(root, monkeypatch):
    monkeypatch.setattr("rocketstore.storage.threads.PAUSE_AFTER_ERROR_S", 0.0)
    fault = Fault("EpollSelector.select", 0, errno.ENOMEM, lasting=False)
    with open_served(root) as store, FailingCalls(root, fault, sockets=True) as calls:
        # A connection that asyncio is just accepting when its loop fails is hung up on.
        server: Any = store.metrics._server
        while not calls.hits:
            with contextlib.suppress(AttributeError, RuntimeError):  # between two loops
                server._loop.call_soon_threadsafe(int)
        answer = ""
        while not answer:
            with contextlib.suppress(OSError):
                answer = ask(store, "/metrics")


@pytest.mark.filterwarnings("ignore:unclosed (transport|<socket):ResourceWarning")
@pytest.mark.parametrize("number", range(8))
def test_a_peer_that_comes_as_their_loop_fails_is_answered_or_hung_up_on(monkeypatch, number):
    select, tries = selectors.EpollSelector.select, itertools.count()

    def failing(self, timeout=None):
        if next(tries) == number:
            raise OSError(errno.ENOMEM, "")
        return select(self, timeout)

    server = http_server.MetricsServer(("127.0.0.1", 0), lambda *_: ())
    with contextlib.closing(server), socket.create_connection(server.listener.getsockname()) as one:
        one.settimeout(1)
        one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n"[: 4 * number])
        monkeypatch.setattr(selectors.EpollSelector, "select", failing)
        gc.disable()
        try:
            with contextlib.suppress(OSError):  # and let go of its frames
                server.serve()
            thread = threading.Thread(target=server.serve)
            thread.start()
            with contextlib.suppress(ConnectionError):
                one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n"[4 * number :])
                one.recv(100)
        finally:
            gc.enable()
            server.wake()
            thread.join()


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
def test_what_a_loop_that_ended_by_an_error_left_goes_in_silence():
    server = http_server.MetricsServer(("127.0.0.1", 0), lambda *_: ())
    loop, (here, there) = asyncio.SelectorEventLoop(), socket.socketpair()
    with contextlib.closing(server), here, there:
        talk = server._talk(*loop.run_until_complete(asyncio.open_connection(sock=here)))
        loop.create_task(talk)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        talk.close()  # as the garbage collector does it
        gc.collect()


def test_a_scrape_needs_no_thread(root, monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open_served(root) as store:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(2 * http_server.MOST_PEERS):
            assert scrape(store)
        monkeypatch.undo()


def test_a_forked_child_does_not_keep_the_port(root):
    store = open_served(root)
    here, there = socket.socketpair()
    child = os.fork()
    if not child:
        here.close()
        there.send(b"!")
        there.recv(1)
        os._exit(0)
    there.close()
    try:
        assert here.recv(1) == b"!"
        store.close()
        assert not is_listening(store.config.metrics_port)
    finally:
        here.close()
        os.waitpid(child, 0)


def test_the_board_is_small_and_names_only_metrics_that_there_are(root):
    board = msgspec.json.decode(BOARD.read_bytes())
    assert BOARD.stat().st_size < 100_000
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [one["query"] for one in board["templating"]["list"]]
    named = {name for text in asked for name in re.findall(r"\brocket(?:mq|store)_\w+", text)}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    with open_served(root, transient_store_pool_enable=True) as store:
        text = ask(store, "/metrics")
    families_there = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    there = families_there | {f"{name}_bucket" for name in families_there}
    assert named
    assert not named - there
