"""The asyncio face of a store: the same answers, awaited, and no thread for each that waits."""

import asyncio
import threading

import pytest

import rocketstore.aio
from rocketstore import (
    FlushDiskType,
    Message,
    MessageStore,
    PutMessageStatus,
    RefusedMessageError,
    StoreLockedError,
)
from rocketstore.storage.opening import StoreParts
from support.configured_store import small_config
from support.patience import PATIENCE_S

SYNC = small_config(flush_disk_type=FlushDiskType.SYNC_FLUSH)


def message(number):
    return Message(topic="orders", body=b"%d" % number)


async def test_tasks_put_and_read(root):
    async with rocketstore.aio.open(root, SYNC) as store:
        results = await asyncio.gather(*(store.put(message(number)) for number in range(50)))
        assert {result.status for result in results} == {PutMessageStatus.PUT_OK}
        batch = await store.put_batch([message(50), message(51)])
        assert batch.message_count == 2
        assert await store.wait_dispatched(timeout_s=PATIENCE_S)
        page = await store.get("orders", 0, 0)
        assert [one.body for one in page.messages] == [b"%d" % n for n in range(32)]
        with pytest.raises(RefusedMessageError):
            await store.put(b"no message")
        await store.flush()
    assert store.store.is_closed


async def test_a_thousand_tasks_wait_without_a_thread_for_each(root):
    async with rocketstore.aio.open(root, SYNC) as store:
        waiting = [
            asyncio.create_task(store.wait_for("orders", 0, number, PATIENCE_S))
            for number in range(1000)
        ]
        await asyncio.sleep(0)
        before = set(threading.enumerate())
        await asyncio.gather(*(store.put(message(number)) for number in range(1000)))
        assert all(await asyncio.gather(*waiting))
        assert len(set(threading.enumerate()) - before) <= 1
        assert not await store.wait_for("orders", 0, 1000, 0.01)


async def test_a_task_consumes_and_another_one_closes_it(root):
    async with rocketstore.aio.open(root, SYNC) as store:
        consumer = store.consume("orders", "billing")
        taken, has_all = [], asyncio.Event()

        async def consume():
            async for one in consumer:
                taken.append(int(one.body))
                if len(taken) == 5:
                    has_all.set()
                if len(taken) == 3:
                    assert await consumer.give_back(one, -1)
                else:
                    assert one.ack()

        task = asyncio.create_task(consume())
        for number in range(5):
            await store.put(message(number), number % 2)
        await has_all.wait()
        await consumer.close()
        await task
        assert sorted(taken) == list(range(5))
        assert await store.wait_for("%DLQ%billing", 0, 0, PATIENCE_S)


async def test_a_cancelled_wait_loses_no_message(root):
    async with rocketstore.aio.open(root, SYNC) as store:
        consumer = store.consume("orders", "billing", idle_timeout_s=0.01)
        task = asyncio.create_task(consumer.poll(None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.put(message(0))
        assert await store.wait_dispatched(timeout_s=PATIENCE_S)
        assert [one.body async for one in consumer] == [b"0"]


@pytest.mark.parametrize("is_over_first", [False, True])
async def test_closing_the_store_ends_what_waits(root, is_over_first):
    """Also where they look again only after it is closed."""
    async with rocketstore.aio.open(root, SYNC) as store:
        consumer = store.consume("orders", "billing")
        waiting = asyncio.create_task(store.wait_for("orders", 0, 0, None))
        task = asyncio.create_task(anext(consumer, None))
        await asyncio.sleep(0)
        if is_over_first:
            store.store.close()  # the loop stands still meanwhile
        await store.close()
        assert await task is None
        assert not await waiting


@pytest.fixture
def slowly(monkeypatch):
    """Say when an opening or a release has begun, and have it wait until it may go on."""
    going, may_go_on = threading.Event(), threading.Event()
    opens, drops, made = MessageStore.open, StoreParts.drop, []

    def opened(*arguments):
        going.set()
        assert may_go_on.wait(PATIENCE_S)
        made.append(opens(*arguments))
        return made[-1]

    def dropped(self):
        going.set()
        assert may_go_on.wait(PATIENCE_S)
        drops(self)

    monkeypatch.setattr(MessageStore, "open", opened)
    monkeypatch.setattr(StoreParts, "drop", dropped)
    return (going, may_go_on), opens, made


async def cancelled(task, work, times):
    going, may_go_on = work
    await asyncio.to_thread(going.wait, PATIENCE_S)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    may_go_on.set()
    assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_opening_leaves_no_store_open(root, slowly, times):
    async def use():
        async with rocketstore.aio.open(root, SYNC):
            pytest.fail("it was cancelled before")

    work, opens, made = slowly
    await cancelled(asyncio.create_task(use()), work, times)
    assert [store.is_closed for store in made] == [True]
    opens(root, SYNC).close()


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_close_ends_before_its_caller_goes_on(root, slowly, times):
    work, opens, _ = slowly
    store = rocketstore.aio.AsyncMessageStore(opens(root, SYNC))
    await cancelled(asyncio.create_task(store.close()), work, times)
    opens(root, SYNC).close()


async def test_an_opening_that_fails_while_it_is_cancelled_says_why(root, slowly):
    async def use():
        async with rocketstore.aio.open(root, SYNC):
            pytest.fail("another one has it")

    (going, may_go_on), opens, _ = slowly
    with opens(root, SYNC):
        task = asyncio.create_task(use())
        await asyncio.to_thread(going.wait, PATIENCE_S)
        task.cancel()
        may_go_on.set()
        with pytest.raises(StoreLockedError):
            await task
