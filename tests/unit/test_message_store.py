"""The house above storage: services of a store, also from outside, and records put as they are."""

from functools import partial

import pytest

from rocketstore import ArgumentError, MessageStore, PutMessageStatus, Service
from rocketstore.format.host import encode_host
from rocketstore.native.log_end import Record
from support.repository import ROOT
from support.small_store import CONFIG


class Noting(Service):
    """Notes what is asked of it, and whether the store works then."""

    def __init__(self, name, events, store, *, fails=False):
        self.store, self.events, self.name, self.fails = store, events, name, fails

    def start(self):
        if self.fails:
            raise OSError("no port")
        self.events.append(("start", self.name, self.put().status))

    def stop(self):
        self.events.append(("stop", self.name, self.put().status))

    def put(self):
        return self.store.put_record("T", 0, record(b"by a service"))

    def runtime_info(self):
        return {f"{self.name}Events": len(self.events)}


def record(body, properties=b"DELAY\x013"):
    return Record(body, properties, encode_host("127.0.0.1:1"))


def open_with(events, root, *, fails=False, **settings):
    services = [partial(Noting, "first", events), partial(Noting, "second", events, fails=fails)]
    return MessageStore.open(root, CONFIG, services=services, **settings)


def test_services_start_after_the_store_and_stop_before_it(tmp_path):
    events = []
    with open_with(events, tmp_path) as store:
        assert [event[:2] for event in events] == [("start", "first"), ("start", "second")]
        assert [*store.attached][-2:] == ["first", "second"]
        assert store.attached["second"].store is store
        assert store.runtime_info()["secondEvents"] == "2"
        assert store.attached.get("third") is None
        store.wait_dispatched()
    assert [event[:2] for event in events[2:]] == [("stop", "second"), ("stop", "first")]
    assert {event[2] for event in events} == {PutMessageStatus.PUT_OK}
    with MessageStore.open(tmp_path, CONFIG, read_only=True) as reader:
        assert reader.max_offset("T", 0) == 4


def test_without_threads_no_service_runs(tmp_path):
    events = []
    with open_with(events, tmp_path, threads=False):
        assert not events


def test_a_service_that_cannot_start_leaves_the_store_closed_and_unlocked(tmp_path):
    events = []
    with pytest.raises(OSError, match="no port"):
        open_with(events, tmp_path, fails=True)
    assert ("stop", "first") in {event[:2] for event in events}
    with MessageStore.open(tmp_path, CONFIG) as store:
        assert store.max_offset("T", 0) >= 1


def test_an_interrupt_while_a_service_stops_ends_the_store_all_the_same(tmp_path):
    events = []
    store = open_with(events, tmp_path)
    interrupted = store.attached["second"]
    stop = interrupted.stop
    left = [KeyboardInterrupt]

    def stop_once():
        if left:
            raise left.pop()
        stop()

    interrupted.stop = stop_once
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert [event[:2] for event in events[2:]] == [("stop", "second"), ("stop", "first")]
    MessageStore.open(tmp_path, CONFIG).close()


@pytest.mark.parametrize("what", ["stop", "finish"])
def test_a_broken_service_does_not_keep_the_store_open(tmp_path, what):
    events = []
    store = open_with(events, tmp_path)
    setattr(store.attached["second"], what, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        store.close()
    assert ("stop", "first") in {event[:2] for event in events}
    assert not (tmp_path / "abort").exists()
    MessageStore.open(tmp_path, CONFIG).close()


class Nameless(Service):
    def __init__(self, *_store):
        pass


class Delays(Nameless):
    name = "delays"


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"services": [Nameless]}, "services: expected makers of a Service each, with a `name`"),
        ({"services": [Delays]}, "services: expected makers of a Service each, with a `name`"),
        ({"services": [lambda _: 3]}, r"of its own, found 3 \(int\)"),
        ({"kinds": [Delays]}, "kinds: expected makers of a TopicKind each"),
    ],
)
def test_what_is_no_service_or_kind_with_a_name_of_its_own_is_refused(tmp_path, wrong, found):
    with pytest.raises(ArgumentError, match=found):
        MessageStore.open(tmp_path, CONFIG, **wrong)
    MessageStore.open(tmp_path, CONFIG).close()


def test_a_record_is_stored_as_it_is(tmp_path):
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        result = store.put_record("T", 2, record(b"copy", b"DELAY\x013\x02REAL_QID\x012"))
        store.wait_dispatched()
        [message] = store.get("T", 2, 0).messages
        assert result.physical_offset == message.physical_offset
        assert message.properties == {"DELAY": "3", "REAL_QID": "2"}
        long = store.put_record("T", 2, record(bytes(store.config.max_message_size + 1)))
        assert long.status is PutMessageStatus.MESSAGE_ILLEGAL


def test_the_service_of_the_page_works(tmp_path):
    """The example of docs/contributing.md, added from outside of the package."""
    example = (ROOT / "docs/contributing.md").read_text("utf-8").split("```python\n")[1]
    names = {}
    exec(example.split("```")[0], names)  # noqa: S102 - our own page
    with MessageStore.open(tmp_path, CONFIG, services=[names["Heartbeat"]]) as store:
        store.attached["heartbeat"]._beat()
        assert store.wait_dispatched()
        assert store.runtime_info()["heartbeats"] == "1"
        assert store.attached["heartbeat"]._thread.is_running
