"""A store on an object store is read as on a disk, by ranges, and tells nobody's credentials."""

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.errors import NotAStoreError, StoreError
from rocketstore.places.files import files_at
from rocketstore.units import MiB
from support.audit_runs import audited, keys
from support.clock import Clock
from support.golden_stores import golden_root
from support.pipeline_tables import plan_table, read_table
from support.report_run import make_report, tables_of
from support.s3_server import SECRET_KEY, running_s3
from support.small_store import build_store, messages, open_store, overwrite, put_all
from support.stream_run import StreamRun, flat, places_of

GOLDEN = ("basic", "batch", "ipv6", "delay", "transactions", "multidispatch")
TABLES = ("messages", "commitlog", "consumequeue", "index", "segments", "damage")


@pytest.fixture(scope="module")
def s3():
    with running_s3() as server:
        for name in GOLDEN:
            server.put_tree(golden_root(name), f"stores/{name}/store")
        yield server


def options_of(table):
    return {"maxHashSlotNum": 500, "maxIndexNum": 2000} if table == "index" else {}


def without_places(rows):
    """Leave out what names the place."""
    return [{name: row[name] for name in row if name not in ("file", "path")} for row in rows]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", GOLDEN)
def test_every_table_has_the_same_rows_as_on_a_disk(s3, name, table):
    options = options_of(table) | {"table": table}
    on_disk = without_places(read_table(golden_root(name), **options))
    assert on_disk or table in ("damage", "index")
    assert without_places(read_table(s3.uri(f"stores/{name}/store"), **options)) == on_disk


def test_a_location_is_written_as_hadoop_writes_it_too_and_may_be_a_pattern(s3, monkeypatch):
    expected = read_table(s3.uri("stores/basic/store"))
    hadoops = s3.uri("stores/basic/store").replace("s3://", "s3a://")
    assert without_places(read_table(hadoops)) == without_places(expected)
    assert len(read_table(s3.uri("stores/basi*/st*e"))) == len(expected)
    with pytest.raises(NotAStoreError, match="no directory matches"):
        read_table(s3.uri("stores/nothing-*"))


def test_all_stores_of_a_host_are_reached_by_one_client(s3):
    clients = {id(files_at(s3.uri(f"stores/{name}"))[0].system) for name in GOLDEN}
    assert len(clients) == 1


def test_a_prefix_with_several_stores_is_all_of_them(s3):
    rows = read_table(s3.uri("stores/basic"), columns="brokerName,physicalOffset")
    assert {row["brokerName"] for row in rows} == {"store"}
    with pytest.raises(NotAStoreError, match="holds no commitlog"):
        read_table(s3.uri("stores"))


def test_damage_is_reported_as_on_a_disk(tmp_path, s3):
    store = tmp_path / "store"
    offsets = build_store(store, 300, Clock())
    overwrite(store, offsets[150] + 100, b"\xff" * 10)
    s3.put_tree(store, "damaged/store")
    for table in ("commitlog", "damage"):
        options = {"table": table} | ({"damage": "skip"} if table == "commitlog" else {})
        on_disk = without_places(read_table(store, **options))
        found = without_places(read_table(s3.uri("damaged/store"), **options))
        assert found == on_disk
        assert found


def test_a_pruned_query_reads_a_part_of_one_file(tmp_path, s3):
    store = tmp_path / "store"
    build_store(store, 600, Clock(), body_size=2000)
    s3.put_tree(store, "pruned/store")
    log_bytes = sum(len(content) for content in s3.tree("pruned/store/commitlog").values())
    s3.take()
    wanted = {"assign": '{"Topic0":[0]}', "maxSplitBytes": "64k"}
    offsets = {"startingOffsets": '{"Topic0":{"0":200}}', "endingOffsets": '{"Topic0":{"0":205}}'}
    rows = read_table(s3.uri("pruned/store"), **wanted, **offsets)
    assert [row["queueOffset"] for row in rows] == list(range(200, 205))
    asked = s3.take()
    gets = [one for one in asked if one.method == "GET" and one.key]
    assert all(one.range for one in gets)
    assert sum(one.sent for one in gets if "/commitlog/" in one.key) < log_bytes / 10
    assert len(asked) < 60


def test_of_a_long_file_only_the_window_around_the_asked_records_is_read(tmp_path, s3):
    config = StoreConfig(mapped_file_size_commit_log=32 * MiB, retention=False)
    with MessageStore.open(tmp_path / "store", config) as opened:
        for number in range(12_000):
            opened.put(Message(topic="T", body=b"%08d" % number * 250), queue_id=0)
    s3.put_tree(tmp_path / "store", "long/store")
    location = s3.uri("long/store")
    s3.take()
    wanted = {"startingOffsets": '{"T":{"0":5000}}', "endingOffsets": '{"T":{"0":5010}}'}
    rows = read_table(location, subscribe="T", columns="queueOffset", **wanted)
    assert [row["queueOffset"] for row in rows] == list(range(5000, 5010))
    gets = [one for one in s3.take() if one.method == "GET" and "/commitlog/" in one.key]
    assert all(one.range for one in gets)
    assert sum(one.sent for one in gets) < 9 * MiB


def test_a_binary_search_in_a_queue_file_asks_for_few_blocks(s3):
    content = b"".join(number.to_bytes(20, "big") for number in range(300_000))
    s3.objects["blocks/file"] = content
    files, path = files_at(s3.uri("blocks/file"))
    file = files.open(path)
    s3.take()
    low, high = 0, 300_000
    while low < high:
        middle = (low + high) // 2
        is_less = int.from_bytes(file.read(middle * 20, 20), "big") < 123_456
        low, high = (middle + 1, high) if is_less else (low, middle)
    assert low == 123_456
    assert len(s3.take()) < 12
    assert file.read(len(content) - 7, 20) == content[-7:]
    assert file.read(len(content), 20) == b""
    assert file.read(5, 100_000) == content[5:100_005]


# --- credentials --------------------------------------------------------------------------------


def test_a_refused_key_is_an_error_without_the_secret(s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SOMEBODYELSE")
    location = s3.uri("stores/basic/store") + "&allow_bucket_creation=false"
    with pytest.raises(StoreError, match="cannot be read") as caught:
        read_table(location)
    told = f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
    assert SECRET_KEY not in told
    assert "SOMEBODYELSE" not in told


def test_no_plan_holds_a_credential(s3):
    plan = repr(plan_table(s3.uri("stores/basic/store")))
    assert SECRET_KEY not in plan
    assert "TESTACCESSKEY" not in plan


# --- locations ----------------------------------------------------------------------------------


def test_a_store_whose_name_has_blanks_is_found(s3):
    s3.put_tree(golden_root("batch"), "odd/a b=ü")
    rows = read_table(s3.uri("odd"), columns="brokerName")
    assert {row["brokerName"] for row in rows} == {"a b=ü"}


# --- jobs that only read ------------------------------------------------------------------------


def test_an_audit_finds_the_same_as_on_a_disk(tmp_path, s3):
    store = tmp_path / "store"
    offsets = build_store(store, 240, Clock())
    overwrite(store, offsets[100] + 100, b"\xff" * 10)
    queue = next((store / "consumequeue" / "Topic1" / "0").iterdir())
    queue.write_bytes(queue.read_bytes()[:100] + bytes(20) + queue.read_bytes()[120:])
    s3.put_tree(store, "audited/store")
    on_disk = audited(store)
    found = audited(s3.uri("audited/store"))
    assert on_disk.findings
    assert keys(found.findings) == keys(on_disk.findings)


def test_a_report_says_the_same_as_of_a_disk(tmp_path, s3):
    reports = [
        make_report(place, tmp_path / name, now_ms=1_800_000_000_000)
        for name, place in (("disk", golden_root("basic")), ("s3", s3.uri("stores/basic/store")))
    ]
    on_disk, found = (
        {name: without_places(rows) for name, rows in tables_of(report).items()}
        for report in reports
    )
    assert found == on_disk


# --- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"subscribe": "Topic0,Topic1"}])
def test_a_stream_follows_a_store_whose_copy_grows(tmp_path, s3, options):
    store, clock = tmp_path / "store", Clock()
    prefix = f"grown{len(options)}/store"
    build_store(store, 100, clock)
    s3.put_tree(store, prefix)
    given = {"maxOffsetsPerTrigger": 60, "startingOffsets": "earliest"} | options
    run = StreamRun(s3.uri(prefix), **given)
    first = flat(run.drain())
    assert len(first) == 100
    with open_store(store, clock) as opened:
        put_all(opened, messages(150, first=100), clock)
    s3.put_tree(store, prefix)
    again = StreamRun(s3.uri(prefix), run.checkpoint, **given)
    found = places_of(first + flat(again.drain()))
    assert sorted(found) == places_of(read_table(store))
    assert len(set(found)) == 250
