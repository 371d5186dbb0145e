"""A reader beside another process that writes, rolls and deletes files of the same store."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.results import GetMessageStatus

SOURCE = Path(__file__).resolve().parents[2] / "src"

WRITER = """
import sys
from rocketstore import FlushDiskType, Message, MessageStore, StoreConfig

root, count, flush, deletes = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "deletes"
config = StoreConfig(
    mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=2000,
    max_hash_slot_num=100, max_index_num=400, flush_disk_type=FlushDiskType(flush),
    file_reserved_time=0, delete_when=";".join(f"{h:02d}" for h in range(24)), retention=deletes,
    delete_commit_log_files_interval=0,
)
with MessageStore.open(root, config) as store:
    print("open", flush=True)
    for n in range(count):
        body = (b"%d|" % n) * (n % 50 + 1)
        message = Message(topic="live", body=body, keys=(f"k{n}",), tags=f"t{n % 3}")
        assert store.put(message, queue_id=n % 2).status.name == "PUT_OK"
        if deletes and n % 500 == 499:
            store.wait_dispatched()
            store.delete_expired_files()
    print("done", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("flush", "retention", "count"),
    [
        ("ASYNC_FLUSH", "keeps", 6000),
        ("SYNC_FLUSH", "keeps", 800),
        ("ASYNC_FLUSH", "deletes", 8000),
    ],
)
def test_a_reader_sees_every_message_once_and_in_order_while_another_process_writes(
    tmp_path, flush, retention, count
):
    root = tmp_path / "store"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", WRITER, str(root), str(count), flush, retention]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        try:
            while (line := writer.stdout.readline()).strip() != "open":
                assert line, "the writer ended"
            seen = read_until_the_end(ReadOnlyStore(root), count, may_expire=retention == "deletes")
        finally:
            writer.stdin.write("\n")
            writer.stdin.flush()
            for _ in writer.stdout:
                pass
    assert writer.returncode == 0
    if retention == "keeps":
        assert seen == count
    at_rest = ReadOnlyStore(root)
    assert sum(at_rest.max_offset("live", queue_id) for queue_id in (0, 1)) == count
    last = at_rest.find("live", f"k{count - 1}")
    assert [message.queue_offset for message in last] == [(count - 1) // 2]


def read_until_the_end(store: ReadOnlyStore, count: int, *, may_expire: bool) -> int:
    """Follow both queues to their last message; return how many messages were seen."""
    offsets = [0, 0]
    seen = 0
    while sum(offsets) < count:
        for queue_id, offset in enumerate(offsets):
            page = store.get("live", queue_id, offset)
            for place, message in enumerate(page.messages):
                number = 2 * message.queue_offset + queue_id
                assert message.body == (b"%d|" % number) * (number % 50 + 1)
                assert may_expire or message.queue_offset == offset + place
                seen += 1
            if not may_expire:
                assert page.skipped_entries == 0
                assert page.next_offset == offset + len(page.messages)
            assert page.status in {
                GetMessageStatus.FOUND,
                GetMessageStatus.OFFSET_OVERFLOW_ONE,
                GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
                GetMessageStatus.NO_MESSAGE_IN_QUEUE,
                *(
                    (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.MESSAGE_WAS_REMOVING)
                    if may_expire
                    else ()
                ),
            }, page
            offsets[queue_id] = page.next_offset
    return seen
