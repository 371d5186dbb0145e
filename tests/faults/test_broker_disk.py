"""A broker whose disk is full or fails: producers hear 4.9's codes and texts, consumers go on."""

import asyncio
import errno
import json

import pytest

from rocketstore import FlushDiskType, FlushFailedError
from rocketstore.broker.loop import Loop
from rocketstore.format.file_name import file_name
from rocketstore.format.metadata_json import SubscriptionGroup
from rocketstore.remoting.client import RemotingClient
from rocketstore.remoting.command import Command
from rocketstore.storage.running_flags import RunningFlag
from support.broker_desk import SEND, Desk
from support.configured_store import small_config
from support.faulty_disk import FaultyDisk, nth
from support.wire import opened
from unit.broker.test_pulling import PULL

BODY = b"x" * 10_000
NO_FILE = "create mapped file failed, server is busy or broken."
FULL = (
    "service not available now. It may be caused by one of the following reasons: the broker's "
    "disk is full, messages are put to the slave, message store has been shut down, etc."
)
ALWAYS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
HEALTHY = lambda _call, _path, _number: None  # noqa: E731 - one line says more


def fill(desk: Desk) -> Command:
    """Send until a message is refused; return what its producer heard."""
    for _ in range(20):
        answer = desk.send("orders", BODY)
        if answer.code != 0:
            return answer
    raise AssertionError("nothing was refused")


def consume_all(desk: Desk) -> int:
    """Pull from the queue's begin, commit, and return how many messages there are."""
    offset = count = 0
    while (found := desk.answer(11, {**PULL, "sysFlag": 5, "queueOffset": offset,
                                     "commitOffset": offset})).code == 0:  # fmt: skip
        assert found.fields
        count += found.body.count(BODY)
        offset = int(found.fields["nextBeginOffset"])
    assert found.code == 19
    place = {"consumerGroup": "G", "topic": "orders", "queueId": 0}
    assert desk.answer(15, {**place, "commitOffset": offset}).code == 0
    assert desk.answer(14, place).fields == {"offset": str(offset)}
    return count


@pytest.mark.parametrize(
    ("call", "code"),
    [("allocate", errno.ENOSPC), ("create_file", errno.EMFILE), ("create_file", errno.EIO)],
)
def test_next_file_that_cannot_be_made_is_said_and_consumers_go_on(tmp_path, call, code):
    disk = FaultyDisk(HEALTHY)
    desk = Desk(tmp_path, small_config(), disk=disk)
    assert desk.send("orders", BODY).code == 0
    disk.fails = nth(call, 0, code, below="commitlog")
    refused = fill(desk)
    assert (refused.code, refused.remark, refused.fields) == (1, NO_FILE, ALWAYS)
    desk.store.wait_dispatched()
    stored = consume_all(desk)
    assert stored >= 3
    disk.fails = HEALTHY
    assert desk.dispatched("orders", BODY).code == 0
    assert consume_all(desk) == stored + 1
    desk.close()


def test_full_disk_refuses_sends_until_there_is_room_and_consumers_go_on(tmp_path):
    desk = Desk(tmp_path, small_config())
    assert desk.send("orders", BODY).code == 0
    flags = desk.store.running_flags
    flags.set(RunningFlag.DISK_FULL, "97 % of the disk are used")
    refused = desk.send("orders", BODY)
    assert (refused.code, refused.remark, refused.fields) == (14, FULL, ALWAYS)
    desk.store.wait_dispatched()
    assert consume_all(desk) == 1
    flags.clear(RunningFlag.DISK_FULL)
    assert desk.dispatched("orders", BODY).code == 0
    assert consume_all(desk) == 2
    desk.close()


def test_topic_that_cannot_be_made_refuses_its_sends_alone(tmp_path):
    disk = FaultyDisk(HEALTHY)
    desk = Desk(tmp_path, small_config(), disk=disk)
    assert desk.send("orders").code == 0
    disk.fails = lambda _call, path, _number: errno.ENOSPC if "config" in str(path) else None
    refused = desk.send("new")
    assert (refused.code, refused.fields) == (1, ALWAYS)
    assert "cannot save the settings of topics" in str(refused.remark)
    assert desk.send("orders").code == 0
    disk.fails = HEALTHY
    assert desk.send("new").code == 0
    desk.close()


def test_heartbeat_with_a_group_that_cannot_be_made_keeps_the_client_in_its_other_groups(tmp_path):
    disk = FaultyDisk(HEALTHY)
    desk = Desk(tmp_path, small_config(), disk=disk)
    groups = [{"groupName": name, "subscriptionDataSet": []} for name in ("G", "new")]
    first, both = (
        json.dumps({"clientID": "c", "consumerDataSet": some}).encode()
        for some in (groups[:1], groups)
    )
    assert desk.answer(34, body=first).code == 0
    disk.fails = lambda _call, path, _number: errno.ENOSPC if "config" in str(path) else None
    desk.clock.now_ms += 119_000
    assert desk.answer(34, body=both).code == 1
    desk.clock.now_ms += 2000
    desk.loop.turn()  # who was silent for too long is gone
    for group in ("G", "new"):
        assert desk.answer(38, {"consumerGroup": group}).body == b'{"consumerIdList":["c"]}'
    disk.fails = HEALTHY
    assert desk.answer(34, body=both).code == 0
    desk.close()


def test_failed_sync_refuses_this_send_and_all_later_ones_and_consumers_go_on(tmp_path):
    disk = FaultyDisk(HEALTHY)
    config = small_config(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    fields = {letter: str(value) for letter, value in SEND.items()}

    async def main() -> list[Command]:
        desk = Desk(
            tmp_path, config, disk=disk, loop=lambda store: Loop(store.attached["async_puts"]),
            broker_fast_failure_enable=False,  # it has the test's clock, and the server its own
        )  # fmt: skip
        desk.topics.settle(SubscriptionGroup(group_name="G"))
        server = await opened(desk.table)
        address = "{}:{}".format(*server.address)
        async with server, RemotingClient() as client:
            send = lambda: client.ask(address, Command(310, fields=fields, body=BODY))  # noqa: E731
            first = await send()
            desk.store.wait_dispatched()
            disk.fails = nth("fdatasync", 0, errno.EIO, below="commitlog")
            both = [await send(), await send()]
            assert consume_all(desk) == 1
        desk.loop.close()
        with pytest.raises(FlushFailedError):
            desk.close()
        return [first, *both]

    first, *refused = asyncio.run(main())
    assert first.code == 0
    for answer in refused:
        assert (answer.code, answer.fields) == (14, ALWAYS)
        assert str(tmp_path / "commitlog" / file_name(0)) in str(answer.remark)


def test_without_sync_flush_the_sends_after_a_failed_sync_are_refused(tmp_path):
    disk = FaultyDisk(HEALTHY)
    desk = Desk(tmp_path, small_config(), disk=disk)
    assert desk.dispatched("orders", BODY).code == 0
    disk.fails = nth("fdatasync", 0, errno.EIO, below="commitlog")
    assert desk.send("orders", BODY).code == 0
    with pytest.raises(FlushFailedError):
        desk.store.flush()
    refused = desk.send("orders", BODY)
    assert (refused.code, refused.fields) == (14, ALWAYS)
    assert str(tmp_path / "commitlog" / file_name(0)) in str(refused.remark)
    astray = desk.answer(11, {**PULL, "sysFlag": 4, "queueOffset": 99})
    assert (astray.code, astray.fields["nextBeginOffset"]) == (21, "1")  # without its event
    assert consume_all(desk) == 1
    with pytest.raises(FlushFailedError):
        desk.close()
