"""Flow control: what waited too long hears that the broker is busy, by 4.9's code and text."""

from collections.abc import Callable

import msgspec
import pytest

from rocketstore.broker.settings import BrokerSettings
from rocketstore.format.metadata_json import DataVersion, TopicConfig
from rocketstore.remoting.command import Command
from rocketstore.remoting.requests import Call
from support.broker_desk import SEND, Desk
from unit.broker.test_pulling import PULL

END = {
    "producerGroup": "P", "tranStateTableOffset": 0, "commitLogOffset": 0, "commitOrRollback": 8,
    "msgId": "m",
}  # fmt: skip
GIVE_BACK = {"offset": 0, "group": "G", "delayLevel": 0}
KINDS = {
    310: (SEND, 200), 10: ({}, 200), 320: ({}, 200), 36: (GIVE_BACK, 200), 11: (PULL, 5000),
    361: (PULL, 5000), 34: ({}, 31_000), 37: (END, 3000),
}  # fmt: skip
"""Fields and longest wait, in ms, of the requests that may wait too long."""


def turn(desk: Desk, *requests: tuple[int, dict[str, object]], waited_ms: int) -> list[Command]:
    """Let requests be handled together so long after they came; return the replies."""
    desk.peer.heard.clear()
    calls = [
        Call(
            Command(code, fields={name: str(one) for name, one in fields.items()}, body=b"{}"),
            0, desk.peer, desk.clock.now_ms - waited_ms,
        )
        for code, fields in requests
    ]  # fmt: skip
    desk.table.process(calls)
    return desk.peer.heard


@pytest.mark.parametrize("code", KINDS)
def test_request_that_waited_too_long_is_refused(desk, code):
    fields, most_ms = KINDS[code]
    end = desk.store.max_physical_offset
    [late] = turn(desk, (code, fields), waited_ms=most_ms)
    assert late.code == 2
    assert late.remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
        f"{most_ms}ms, size of queue: 0"
    )
    assert desk.store.max_physical_offset == end
    [in_time] = turn(desk, (code, fields), waited_ms=most_ms - 1) or [Command(0)]  # or held
    assert in_time.code != 2


def test_new_topics_of_a_turn_are_one_write_and_who_waited_for_it_is_not_refused(desk, monkeypatch):
    """Each was a write of its own: of 300 sends, 292 were refused."""
    given: list[Callable[[], object]] = []
    monkeypatch.setattr(desk.loop, "post", given.append)
    settle = desk.topics.table.settle

    def settle_slowly(*topics: TopicConfig) -> None:
        desk.clock.now_ms += 300
        settle(*topics)

    monkeypatch.setattr(desk.topics.table, "settle", settle_slowly)
    sends = [(310, {**SEND, "b": f"T{number}"}) for number in (*range(50), *range(50))]
    assert turn(desk, *sends, waited_ms=0) == []
    given.pop()()
    assert [one.code for one in desk.peer.heard] == [0] * 100
    offsets = [one.fields and one.fields["queueOffset"] for one in desk.peer.heard]
    assert offsets == ["0"] * 50 + ["1"] * 50
    assert desk.topics.table.content.data_version == DataVersion(1, desk.clock.now_ms)
    assert [one.code for one in turn(desk, sends[0], waited_ms=300)] == [0]
    desk.clock.now_ms += 200
    desk.topics.make()  # as after heartbeats that bring nothing new
    assert [one.code for one in turn(desk, sends[0], waited_ms=300)] == [2]
    change = {"topic": "T0", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    assert [one.code for one in turn(desk, (17, change), sends[0], waited_ms=0)] == [0, 0]
    assert not given


def test_time_spent_waiting_for_others_of_a_turn_counts_and_the_others_are_told_how_many_wait(desk):
    desk.send("orders")
    slow, place = desk.table.rows[30], {"topic": "orders", "queueId": 0}

    def take_long(header: object, call: Call) -> object:
        desk.clock.now_ms += 150
        return slow.handle(header, call)

    desk.table.rows[30] = slow._replace(handle=take_long)  # type: ignore[arg-type]
    asked = [(310, SEND), (30, place), (310, SEND), (30, place), (310, SEND), (30, place)]
    answers = turn(desk, *asked, waited_ms=0)
    assert [one.code for one in answers] == [0, 0, 0, 0, 2, 0]
    remark = str(answers[4].remark)
    assert remark.startswith("[TIMEOUT_CLEAN_QUEUE]")
    assert remark.endswith("period in queue: 300ms, size of queue: 1")
    assert desk.store.next_queue_offset("orders", 0) == 3


def test_end_of_a_transaction_that_waited_for_a_thread_is_refused(desk):
    done = desk.loop.aside

    def later(call: Call, work: object) -> object:
        desk.clock.now_ms += 3000
        return done(call, work)

    desk.loop.aside = later
    [late] = turn(desk, (37, END), waited_ms=0)
    assert late.code == 2


def test_times_are_those_of_the_settings_and_none_where_it_is_off(tmp_path):
    times = {310: ("Send", 50), 11: ("Pull", 60), 34: ("Heartbeat", 70), 37: ("Transaction", 80)}
    conf = {f"waitTimeMillsIn{name}Queue": str(most_ms) for name, most_ms in times.values()}
    for is_on in ("true", "false"):
        settings = BrokerSettings.of({**conf, "brokerName": "b", "brokerFastFailureEnable": is_on})
        desk = Desk(tmp_path / is_on, **msgspec.structs.asdict(settings))
        for code, (_, most_ms) in {**times, 361: times[11]}.items():
            for waited_ms in (most_ms, most_ms - 1):
                desk.clock.now_ms += 1000  # since a topic or group was made
                answered = turn(desk, (code, KINDS[code][0]), waited_ms=waited_ms)
                is_refused = [one.code for one in answered] == [2]
                assert is_refused is (is_on == "true" and waited_ms == most_ms), code
        desk.close()
