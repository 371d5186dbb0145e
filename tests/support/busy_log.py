"""A log with something for every section of a report, made by an independent hand."""

import random
from pathlib import Path
from typing import NamedTuple

from support.synthetic_log import blank_bytes, record_bytes

START_MS = 1_700_000_000_000
FILE_BYTES = 262_144
DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"
NASTY = '<script>alert("x")</script>&\u202e'


class Put(NamedTuple):
    """What was put, for tests to count by themselves."""

    topic: str
    queue_id: int
    queue_offset: int
    tags: str | None
    keys: str | None
    body_size: int
    size: int
    store_ms: int
    born_ms: int
    reconsume_times: int
    delay_level: int
    sys_flag: int


def busy_puts(count: int, seed: int = 1) -> list[dict]:
    """Return so many messages to put: mostly orders, and some of everything else."""
    chance = random.Random(seed)
    puts = []
    store_ms = START_MS
    for number in range(count):
        store_ms += int(chance.expovariate(1 / 900)) + (40_000 if number == count // 2 else 0)
        put = {
            "topic": chance.choices(["orders", "payments", "audit-log", NASTY], [60, 30, 8, 2])[0],
            "queue_id": min(int(chance.expovariate(1)), 3),
            "tags": chance.choices(["created", "paid", NASTY, None], [50, 30, 1, 19])[0],
            "keys": chance.choices([f"o-{int(chance.expovariate(0.02))}", f"a-{number} b", None])[
                0
            ],
            "body": b"x" * int(chance.lognormvariate(5.5, 1)),
            "store_ms": store_ms,
            "latency_ms": int(chance.lognormvariate(2, 1)) - 3,
        }
        kind = chance.random()
        if kind < 0.04:
            put |= {"topic": DELAY_TOPIC, "queue_id": chance.choice([0, 2, 4, 17])}
            put["delay_level"] = put["queue_id"] + 1
        elif kind < 0.06:
            put |= {"delay_level": 3, "latency_ms": 10_000 + put["latency_ms"]}
        elif kind < 0.09:
            put |= {"topic": "%RETRY%billing", "queue_id": 0, "latency_ms": 65_000}
            put["reconsume_times"] = chance.randrange(1, 9)
        elif kind < 0.1:
            put |= {"topic": "%DLQ%billing", "queue_id": 0, "latency_ms": 7_200_000}
            put["reconsume_times"] = 16
        elif kind < 0.13:
            put |= {"sys_flag": 8, "latency_ms": 2_000}
        puts.append(put)
    return puts


def write_log(directory: Path, puts: list[dict], file_bytes: int = FILE_BYTES) -> list[Put]:
    """Write a store of these messages and return what a reader should count."""
    files: list[bytearray] = [bytearray()]
    offsets: dict[tuple[str, int], int] = {}
    written = []
    for put in puts:
        place = put["topic"], put.get("queue_id", 0)
        record = _record(put, 0, offsets.setdefault(place, 0))
        if len(files[-1]) + len(record) + 8 > file_bytes:
            rest = file_bytes - len(files[-1])
            files[-1] += blank_bytes(rest) + bytes(rest - 8)
            files.append(bytearray())
        address = (len(files) - 1) * file_bytes + len(files[-1])
        files[-1] += _record(put, address, offsets[place])
        written.append(
            Put(
                *place, offsets[place], put.get("tags"), put.get("keys"), len(put["body"]),
                len(record), put["store_ms"], put["store_ms"] - put["latency_ms"],
                put.get("reconsume_times", 0), put.get("delay_level", 0), put.get("sys_flag", 0),
            )
        )  # fmt: skip
        offsets[place] += 1
    log = directory / "commitlog"
    log.mkdir(parents=True)
    for number, content in enumerate(files):
        padded = content + bytes(file_bytes - len(content))
        (log / f"{number * file_bytes:020d}").write_bytes(padded)
    return written


def _record(put: dict, address: int, queue_offset: int) -> bytes:
    named = (
        ("TAGS", put.get("tags")),
        ("KEYS", put.get("keys")),
        ("DELAY", str(put["delay_level"]) if put.get("delay_level") else None),
    )
    properties = "\x02".join(f"{name}\x01{value}" for name, value in named if value is not None)
    return record_bytes(
        address,
        body=put["body"],
        topic=put["topic"].encode(),
        properties=properties.encode(),
        queue_id=put.get("queue_id", 0),
        queue_offset=queue_offset,
        store_timestamp_ms=put["store_ms"],
        born_timestamp_ms=put["store_ms"] - put["latency_ms"],
        reconsume_times=put.get("reconsume_times", 0),
        sys_flag=put.get("sys_flag", 0),
    )
