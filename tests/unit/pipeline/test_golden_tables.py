"""Tables of golden stores hold what Java wrote, whatever way the files are cut."""

import base64
import functools
import shutil
import zlib
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from rocketstore.message import COMPRESSED_FLAG
from rocketstore.pipeline import tables
from rocketstore.scan import extension_units
from support.golden import golden_case
from support.golden_stores import OTHER_QUEUES, SAME_LOG, STORES, golden_root, golden_store
from support.pipeline_tables import plan_table, read_table
from support.store_files import overwrite_file
from support.trees import tree

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(milliseconds):
    return EPOCH + timedelta(milliseconds=milliseconds)


def java_messages(manifest):
    return [record for record in manifest["records"] if record["type"] == "msg"]


def host(java):
    """Return our text of a host; the manifest has Java's long form of IPv6, with a bar."""
    address, bar, port = java.partition("|")
    return f"[{ip_address(address)}]:{port}" if bar else java


def expected_row(java):
    properties = java["properties"]
    return {
        "topic": java["topic"],
        "flag": java["flag"],
        "properties": sorted(properties.items()),
        "brokerName": "broker-a",
        "queueId": java["queueId"],
        "queueOffset": java["queueOffset"],
        "bornTimestamp": at(java["bornTimestamp"]),
        "storeTimestamp": at(java["storeTimestamp"]),
        "tags": properties.get("TAGS"),
        "keys": [key for key in properties.get("KEYS", "").split(" ") if key],
        "uniqKey": properties.get("UNIQ_KEY"),
        "physicalOffset": java["phy"],
        "size": java["size"],
        "sysFlag": java["sysFlag"],
        "bornHost": host(java["bornHost"]),
        "storeHost": host(java["storeHost"]),
        "reconsumeTimes": java["reconsumeTimes"],
        "preparedTransactionOffset": java["preparedTransactionOffset"],
        "bodyCRC": java["bodyCRC"],
        "msgId": java["msgId"],
    }


def plain_body(stored, sys_flag):
    """Inflate as a consumer would; what is no zlib stream stays as it is."""
    if not sys_flag & COMPRESSED_FLAG or sys_flag & 0x700 not in (0, 0x300):
        return stored
    try:
        return zlib.decompress(stored)
    except zlib.error:
        return stored


@pytest.mark.parametrize(("name", "twin"), SAME_LOG.items())
def test_logs_that_are_tested_once_for_several_stores_are_the_same(name, twin):
    parts = ["commitlog", "config", *["consumequeue"] * (name not in OTHER_QUEUES)]
    one, other = golden_root(name), golden_root(twin)
    assert all(tree(one / part) == tree(other / part) for part in parts)


HEALTHY = [name for name in STORES if not name.startswith("crash/")]


@pytest.mark.parametrize("name", HEALTHY)
def test_messages_are_the_records_that_java_read(name):
    store, manifest = golden_store(name)
    rows = read_table(store, brokerName="broker-a")
    java = java_messages(manifest)
    bodies = [row.pop("body") for row in rows]
    for row in rows:
        row["properties"].sort()
    assert rows == [expected_row(one) for one in java]
    for body, one in zip(bodies, java, strict=True):
        if "bodyB64" in one:
            assert body == plain_body(base64.b64decode(one["bodyB64"]), one["sysFlag"])
        elif not one["sysFlag"] & COMPRESSED_FLAG:
            assert len(body) == one["bodyLen"]


def test_golden_bodies_hold_some_that_zlib_packed_and_both_forms_can_be_read():
    store, manifest = golden_store("broker")
    java = java_messages(manifest)
    stored = read_table(store, decompressBody=False, columns="body")
    inflated = read_table(store, columns="body")
    packed = [n for n, one in enumerate(java) if one["sysFlag"] & COMPRESSED_FLAG]
    assert packed
    for number, one in enumerate(java):
        if "bodyB64" in one:
            assert stored[number]["body"] == base64.b64decode(one["bodyB64"])
    assert any(stored[n]["body"] != inflated[n]["body"] for n in packed)
    for n in packed:
        assert inflated[n]["body"] == zlib.decompress(stored[n]["body"])


@functools.cache
def whole_table(name):
    return read_table(golden_root(name))


@pytest.mark.parametrize(
    "name", ["basic", "batch", "transactions", "ipv6", "expired/deleted_by_store"]
)
@pytest.mark.parametrize("max_split_bytes", ["1500", "40k", "1g"])
def test_splits_of_any_size_give_the_same_rows(name, max_split_bytes):
    store = golden_root(name)
    split = read_table(store, maxSplitBytes=max_split_bytes)
    assert split == whole_table(name)
    if max_split_bytes in ("1500", "1g"):
        is_cut = len(plan_table(store, maxSplitBytes=max_split_bytes)) > 1
        assert is_cut == (max_split_bytes == "1500")


@pytest.mark.parametrize("name", HEALTHY)
def test_commitlog_is_messages_without_bodies(name):
    without = [{key: row[key] for key in row if key != "body"} for row in whole_table(name)]
    assert read_table(golden_root(name), table="commitlog") == without


@pytest.mark.parametrize("name", HEALTHY)
def test_consumequeue_holds_the_entries_that_java_read(name):
    store, manifest = golden_store(name)
    rows = read_table(store, table="consumequeue", maxSplitBytes=300)
    found = {}
    for row in rows:
        key = (row["topic"], row["queueId"], row["queueOffset"])
        assert key not in found
        code = row["tagsCode"] if row["extensionAddress"] is None else row["extensionAddress"]
        found[key] = [row["physicalOffset"], row["size"], code]
    for topic, queues in manifest["consumeQueues"].items():
        for queue_id, queue in queues.items():
            for number, entry in enumerate(queue["entries"], queue["minOffset"]):
                assert found[topic, int(queue_id), number] == entry


def test_entries_show_the_units_of_java_s_extensions_and_null_where_one_is_damaged(
    tmp_path, monkeypatch
):
    golden, manifest = golden_store("cqext")
    java = {
        ("ExtTopic", int(queue), unit[0]): (unit[2], unit[3], unit[4])
        for queue, found in manifest["consumeQueues"]["ExtTopic"].items()
        for unit in found["ext"]
    }
    nothing = None, None, None

    def units(**options):
        return {
            (row["topic"], row["queueId"], row["queueOffset"]): (
                row["tagsCode"],
                row["storeTimestamp"] and round(row["storeTimestamp"].timestamp() * 1000),
                None if row["bitMap"] is None else row["bitMap"].hex(),
            )
            for row in read_table(root, table="consumequeue", **options)
            if row["extensionAddress"] is not None
        }

    root = shutil.copytree(golden, tmp_path / "store")
    assert units() == units(maxSplitBytes=60) == java
    assert all(len(set(said)) > 1 for said in zip(*java.values(), strict=True))
    codes = read_table(root, table="consumequeue", columns="tagsCode")
    assert {row["tagsCode"] for row in codes} == {unit[0] for unit in java.values()}
    longest = max(20 + len(unit[2]) // 2 for unit in java.values())
    monkeypatch.setattr(tables, "MOST_UNIT_BYTES", longest)
    monkeypatch.setattr(extension_units, "LONGEST_READ_BYTES", longest + 30)
    assert units() == java
    (first,) = (root / "consumequeue_ext" / "ExtTopic" / "0").glob("0*0")
    overwrite_file(first, 0, bytes(20))
    assert units() == java | {("ExtTopic", 0, 0): nothing}
    shutil.rmtree(root / "consumequeue_ext")
    assert units() == dict.fromkeys(java, nothing)


@pytest.mark.parametrize("name", ["basic", "broker", "transactions", "multidispatch"])
def test_index_holds_the_items_of_every_file(name):
    store, manifest = golden_store(name)
    rows = read_table(store, table="index", maxSplitBytes=4096)
    by_file = {}
    for row in rows:
        by_file.setdefault(row["file"].rpartition("/")[2], []).append(row)
    for file in manifest["indexFiles"]:
        items = by_file[file["file"]]
        assert [row["itemNumber"] for row in items] == list(range(1, file["indexCount"]))
        assert items[0]["physicalOffset"] == file["beginPhyOffset"]
        assert items[-1]["physicalOffset"] == file["endPhyOffset"]
        assert all(row["slot"] == row["keyHash"] % 500 for row in items)
        assert all(row["previousItem"] < row["itemNumber"] for row in items)


def test_segments_are_the_files_of_the_log():
    store = golden_root("basic")
    rows = read_table(store, table="segments")
    assert [row["physicalOffset"] for row in rows] == list(range(0, 19 * 65_536, 65_536))
    assert {row["size"] for row in rows} == {65_536}
    assert {row["state"] for row in rows} == {"whole"}
    times = {row["physicalOffset"]: row["storeTimestamp"] for row in read_table(store)}
    assert [row["firstStoreTimestamp"] for row in rows] == [
        times[row["physicalOffset"]] for row in rows
    ]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_store_has_no_damage(name):
    store = golden_root(name)
    assert read_table(store, table="damage") == []


@pytest.mark.parametrize("name", [name for name in STORES if name.startswith("crash/")])
def test_recovered_stores_give_every_record_that_java_kept(name):
    store, manifest = golden_store(name)
    kept = {one["phy"] for one in java_messages(manifest)}
    assert kept <= {row["physicalOffset"] for row in read_table(store, damage="skip")}


def test_a_directory_of_stores_is_read_as_one_with_their_names():
    directory = golden_case("expired")
    rows = read_table(directory)
    variants = {"base", "files_removed", "files_and_cq_removed", "deleted_by_store"}
    assert {row["brokerName"] for row in rows} == variants
    listed = ",".join(str(directory / one) for one in ("base", "files_removed"))
    two = read_table(listed, brokerName="a, b")
    assert {row["brokerName"] for row in two} == {"a", "b"}
    assert len(two) == sum(row["brokerName"] in ("base", "files_removed") for row in rows)
