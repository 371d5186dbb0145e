"""Every CommitLog that Apache RocketMQ 4.9.3 wrote scans to what 4.9.3 reads from it."""

import base64
import hashlib

import pyarrow as pa
import pytest

from rocketstore.format.java_hash import tags_code
from rocketstore.scan.arrow import SCHEMA, to_arrow
from rocketstore.scan.scanner import scan_window
from support.golden_stores import STORES, golden_root, golden_store

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

SAME_NAME = (
    "physicalOffset", "size", "topic", "queueId", "queueOffset", "sysFlag", "flag",
    "bornTimestamp", "storeTimestamp", "reconsumeTimes", "preparedTransactionOffset", "bodyCRC",
    "msgId",
)  # fmt: skip


def batches_of(store, end):
    """Yield the batches of all segments; damage may only stand behind Java's end of the log."""
    for path in sorted((store / "commitlog").iterdir()):
        for batch in scan_window(path.read_bytes(), base=int(path.name)):
            assert [damage for damage in batch.damage if damage.range.start < end] == []
            yield batch


def scanned(store, end):
    """Return the rows of all segments, and the blanks as (physical offset, size)."""
    rows, blanks = [], []
    for batch in batches_of(store, end):
        rows += [row for row in to_arrow(batch.columns).to_pylist() if row["physicalOffset"] < end]
        blanks += [tuple(blank) for blank in batch.blanks if blank.physical_offset < end]
    return rows, blanks


@pytest.mark.parametrize("name", STORES)
def test_a_golden_log_scans_to_its_manifest(name):
    store, manifest = golden_store(name)
    rows, blanks = scanned(store, manifest["maxPhyOffset"])
    expected = [record for record in manifest["records"] if record["type"] == "msg"]
    assert len(rows) == len(expected)
    for row, record in zip(rows, expected, strict=True):
        assert {name: row[name] for name in SAME_NAME} == {name: record[name] for name in SAME_NAME}
        assert row["properties"].decode() == record["propertiesRaw"]
        assert len(row["body"]) == record["bodyLen"]
        assert row["tags"] == record["properties"].get("TAGS")
        assert row["keys"] == record["properties"].get("KEYS")
        assert row["uniqKey"] == record["properties"].get("UNIQ_KEY")
        if "bodyB64" in record:
            assert row["body"] == base64.b64decode(record["bodyB64"])
        if "bodySha1" in record:
            assert hashlib.sha1(row["body"]).hexdigest() == record["bodySha1"]  # noqa: S324
    assert blanks == [
        (record["phy"], record["size"])
        for record in manifest["records"]
        if record["type"] == "blank"
    ]


@pytest.mark.parametrize("name", STORES)
def test_columns_are_what_java_dispatches(name):
    store, manifest = golden_store(name)
    end = manifest["maxPhyOffset"]
    found, levels = [], []
    for batch in batches_of(store, end):
        is_kept = batch.columns.physical_offset < end
        found += batch.columns.tags_code[is_kept].tolist()
        levels += batch.columns.delay_level[is_kept].tolist()
    records = [record for record in manifest["records"] if record["type"] == "msg"]
    for code, record in zip(found, records, strict=True):
        assert code == tags_code(record["properties"].get("TAGS"))
        # The delivery time takes the hash's place in the delay queue: dispatch's affair.
        if record["topic"] != SCHEDULE_TOPIC and "dispatch" in record:
            assert code == record["dispatch"][2]
    asked = [int(record["properties"].get("DELAY", 0)) for record in records]
    # A level below 0 asks for nothing.
    assert levels == [max(level, 0) for level in asked]


def test_arrow_columns_have_the_schema_whatever_is_asked_for():
    store = golden_root("basic")
    data = (store / "commitlog" / "00000000000000000000").read_bytes()
    (batch,) = scan_window(data, base=0)
    whole = to_arrow(batch.columns)
    whole.validate(full=True)
    assert whole.schema == SCHEMA
    for name in SCHEMA.names:
        one = to_arrow(batch.columns, [name])
        assert one.schema == pa.schema([SCHEMA.field(name)])
        assert one.column(0).equals(whole.column(name))
    with pytest.raises(KeyError):
        to_arrow(batch.columns, ["nothing"])
