"""``format("rocketstore")`` through Spark itself: rows, types, SQL, filters, errors."""

import json
import shutil
from collections import Counter

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.pipeline import inner_messages, session
from support.batch_stores import BATCHES, open_batches, put
from support.golden_stores import golden_root
from support.pipeline_tables import read_table

pytestmark = [pytest.mark.spark]


@pytest.fixture(scope="module")
def basic():
    return golden_root("basic")


@pytest.fixture
def copy(tmp_path, basic):
    return shutil.copytree(basic, tmp_path / "store")


def load(spark, path, **options):
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
    return spark.read.format("rocketstore").options(**texts).load(str(path))


def rows_of(frame):
    """Return rows as ``read_table`` does; Spark's rows keep no order of a map's entries."""
    found = []
    for row in frame.collect():
        values = row.asDict()
        for name, value in values.items():
            if isinstance(value, dict):
                values[name] = sorted(value.items())
            elif isinstance(value, bytearray):
                values[name] = bytes(value)
        found.append(values)
    return found


def as_spark(rows):
    """Spark gives times without a zone, in the session's, which is UTC here."""
    for row in rows:
        if "properties" in row:
            row["properties"].sort()
        for name in ("bornTimestamp", "storeTimestamp", "firstStoreTimestamp", "dueTimestamp"):
            if row.get(name) is not None:
                row[name] = row[name].replace(tzinfo=None)
    return rows


def by_offset(rows):
    return sorted(rows, key=lambda row: row["physicalOffset"])


# --- rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "table"),
    [
        *(("basic", one) for one in ("commitlog", "consumequeue", "index", "segments", "damage")),
        *((one, "messages") for one in ("broker", "ipv6", "transactions")),
    ],
)
def test_every_table_is_what_its_reader_gives(spark, name, table):
    store = golden_root(name)
    found = rows_of(load(spark, store, table=table, brokerName="broker-a"))
    expected = as_spark(read_table(store, table=table, brokerName="broker-a"))
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_many_splits_agree(spark, basic):
    frame = load(spark, basic, maxSplitBytes="30k")
    assert by_offset(rows_of(frame)) == as_spark(read_table(basic))


def test_entries_of_batch_queues_lead_to_the_records_of_their_messages(spark, tmp_path):
    with open_batches(tmp_path) as store:
        put(store, "a", "b", "c")
        put(store, "d", "e")
        page = store.get(BATCHES, 0, 0)
    found = {}
    for row in rows_of(load(spark, tmp_path, table="batchqueue")):
        for number in range(row["baseOffset"], row["baseOffset"] + row["messageCount"]):
            found[row["topic"], row["queueId"], number] = row["physicalOffset"]
    assert found == {(BATCHES, 0, one.queue_offset): one.physical_offset for one in page.messages}
    assert len(found) == 5
    rows = load(spark, tmp_path).select("queueOffset", "sysFlag", "properties", "body")
    made = rows.mapInArrow(inner_messages, rows.schema).orderBy("queueOffset").collect()
    assert [bytes(row["body"]) for row in made] == [one.body for one in page.messages]
    lag = load(spark, tmp_path, table="queues").selectExpr("maxOffset - minOffset").collect()
    assert [tuple(row) for row in lag] == [(5,)]


def test_what_waits_is_counted_in_sql(spark, tmp_path):
    store = golden_root("broker")
    delays = load(spark, store, table="delays")
    found = sorted(map(str, rows_of(delays)))
    assert found == sorted(map(str, as_spark(read_table(store, table="delays"))))
    copies = load(spark, store, table="commitlog").where("properties['DELAY'] IS NOT NULL")
    same = ["uniqKey", "bornTimestamp", "realTopic"]
    delivered = copies.withColumnRenamed("topic", "realTopic").select(same)
    assert delays.join(delivered, same, "left_anti").count() == 3  # as the page has it
    levels = delays.groupBy("level").count().orderBy("level").collect()
    assert [tuple(row) for row in levels] == [(1, 2), (2, 1), (3, 1), (18, 3)]
    open_store = shutil.copytree(store, tmp_path / "open")
    offsets = {"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 8}}
    (open_store / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    open_halves = load(spark, open_store, table="transactions")
    asked = open_halves.selectExpr("queueOffset", "current_timestamp() > bornTimestamp AS is_old")
    assert sorted(map(tuple, asked.collect())) == [(number, True) for number in (1, 4, 7, 10)]


def test_columns_have_the_types_of_the_page(spark, basic):
    types = dict(load(spark, basic).dtypes)
    assert types["bornTimestamp"] == types["storeTimestamp"] == "timestamp"
    assert types["queueOffset"] == types["physicalOffset"] == types["size"] == "bigint"
    numbers = ("queueId", "flag", "sysFlag", "reconsumeTimes", "bodyCRC")
    assert {types[name] for name in numbers} == {"int"}
    assert types["body"] == "binary"
    assert types["properties"] == "map<string,string>"
    assert types["keys"] == "array<string>"


def test_columns_can_be_chosen_by_option_or_by_schema(spark, basic):
    chosen = load(spark, basic, columns="queueOffset,topic,properties")
    assert chosen.columns == ["queueOffset", "topic", "properties"]
    reader = spark.read.format("rocketstore").schema("topic string, `keys` array<string>")
    assert by_topic(reader.load(str(basic)).collect()) == by_topic(chosen.collect())


def by_topic(rows):
    return Counter(row["topic"] for row in rows)


def test_several_stores_are_read_as_one(spark):
    stores = [golden_root(name) for name in ("basic", "ipv6")]
    names = Counter(basic=1489, ipv6=624)
    listed = load(spark, ",".join(map(str, stores)), brokerName="basic,ipv6", columns="brokerName")
    assert Counter(row[0] for row in listed.collect()) == names
    both = spark.read.format("rocketstore").option("brokerName", "basic,ipv6")
    frame = both.load([str(store) for store in stores])
    counted = frame.groupBy("brokerName").count().collect()
    assert {row["brokerName"]: row["count"] for row in counted} == names


def test_an_empty_range_is_an_empty_frame(spark, basic):
    same = json.dumps({"TopicA": {str(queue): 5 for queue in range(4)}})
    frame = load(spark, basic, subscribe="TopicA", startingOffsets=same, endingOffsets=same)
    assert frame.collect() == []
    assert load(spark, basic, subscribePattern="nobody").count() == 0


def test_a_topic_that_no_store_has_is_an_error_unless_loss_is_allowed(spark, basic):
    with pytest.raises(Exception, match=r"ConfigError: no topic nobody in .*failOnDataLoss"):
        load(spark, basic, subscribe="nobody").count()
    assert load(spark, basic, subscribe="nobody", failOnDataLoss=False).count() == 0


# --- SQL and filters ----------------------------------------------------------------------------


def test_a_view_answers_sql(spark, basic):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW log USING rocketstore "
        f"OPTIONS (path '{basic}', table 'commitlog')"
    )
    found = spark.sql(
        "SELECT topic, count(*) AS n, max(queueOffset) AS last FROM log "
        "WHERE size > 100 AND properties['TAGS'] = 'TagA' GROUP BY topic ORDER BY topic"
    ).collect()
    rows = [row for row in read_table(basic) if row["size"] > 100 and row["tags"] == "TagA"]
    expected = Counter(row["topic"] for row in rows)
    assert {row["topic"]: row["n"] for row in found} == expected
    assert found


def test_a_table_of_the_catalog_is_read_with_the_options_it_was_made_with(spark, basic, tmp_path):
    spark.sql(f"CREATE TABLE headers USING rocketstore OPTIONS (path '{basic}', table 'commitlog')")
    spark.sql("CREATE TABLE typed (topic STRING) USING rocketstore OPTIONS (path '/nowhere')")
    try:
        assert spark.sql("SELECT count(*) AS n FROM headers").first()["n"] == 1489
        assert "body" not in spark.table("headers").columns
        with pytest.raises(Exception, match="is not a store"):
            spark.sql("CREATE TABLE nothing USING rocketstore OPTIONS (path '/nowhere')")
        with pytest.raises(Exception, match="make the table without columns"):
            spark.table("typed").count()
        row = spark.createDataFrame([(b"x",)], "body BINARY").write.format("rocketstore")
        with pytest.raises(Exception, match="no store is named"):
            row.option("topic", "a").saveAsTable("unnamed")
    finally:
        for name in ("headers", "typed", "unnamed"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_table_of_the_catalog_may_have_properties_that_are_no_options(spark, basic):
    spark.sql(
        f"CREATE TABLE noted USING rocketstore OPTIONS (path '{basic}', subscribe 'TopicA') "
        "COMMENT 'orders' TBLPROPERTIES ('team' = 'payments', 'topic' = 'theirs')"
    )
    try:
        rows = spark.table("noted").select("topic").distinct().collect()
        assert [row.topic for row in rows] == ["TopicA"]
        with pytest.raises(Exception, match="option team is unknown"):
            spark.sql(f"CREATE TABLE no USING rocketstore OPTIONS (path '{basic}', team 'a')")
    finally:
        spark.sql("DROP TABLE IF EXISTS noted")


def test_a_schema_of_a_table_of_the_catalog_brings_none_of_its_options_along(
    spark, basic, tmp_path
):
    with MessageStore.open(tmp_path / "other", StoreConfig.small()) as store:
        assert store.put(Message(topic="other", body=b"its"), 0).is_stored
    options = f"path '{basic}', subscribe 'TopicA', columns 'topic,queueId'"
    spark.sql(f"CREATE TABLE kept USING rocketstore OPTIONS ({options})")
    try:
        schema = spark.table("kept").schema
        for give in (
            lambda read: read.load(str(tmp_path / "other")),
            lambda read: read.load([str(tmp_path / "other")]),
        ):
            found = give(spark.read.format("rocketstore").schema(schema)).collect()
            assert [(row.topic, row.queueId) for row in found] == [("other", 0)]
    finally:
        spark.sql("DROP TABLE IF EXISTS kept")


FILTER_COLUMNS = "topic,tags,queueId,queueOffset,physicalOffset,size,storeTimestamp,brokerName"


@pytest.fixture(scope="module")
def unfiltered(spark, basic):
    """Return a frame of rows that Spark already has."""
    rows = load(spark, basic, table="commitlog", columns=FILTER_COLUMNS).collect()
    return spark.createDataFrame(rows)


@pytest.mark.parametrize(
    "wanted",
    [
        "topic = 'TopicA'",
        "topic = 'TopicA' OR tags = 'TagB'",
        "storeTimestamp >= '2026-11-21 04:53:11.5' AND storeTimestamp < '2026-11-21 04:53:12'",
    ],
)
def test_a_filter_gives_the_same_rows_under_spark_s_defaults(spark, basic, unfiltered, wanted):
    frame = load(spark, basic, table="commitlog", columns=FILTER_COLUMNS)
    found, expected = (by_offset(rows_of(one.filter(wanted))) for one in (frame, unfiltered))
    assert found == expected


PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.mark.parametrize("is_on", [False, True])
def test_a_filtered_query_changes_no_other_query_of_its_frame(spark, basic, is_on):
    spark.conf.set(PUSHDOWN, str(is_on).lower())
    try:
        frame = load(spark, basic, table="commitlog")
        first = frame.filter("topic = 'TopicA' and queueId = 0")
        assert first.count() == 186
        assert frame.count() == 1489
        other = frame.filter("queueId = 1")
        assert first.union(other).count() == 186 + 377
    finally:
        spark.conf.unset(PUSHDOWN)


# --- damage and other trouble -------------------------------------------------------------------


def test_damage_stops_a_query_with_one_plain_sentence(spark, copy):
    (copy / "commitlog" / "00000000000000655360").write_bytes(b"\xff" * 65_536)
    with pytest.raises(Exception, match="StoreDamagedError") as caught:
        load(spark, copy, table="commitlog").count()
    message = str(caught.value)
    assert "00000000000000655360" in message
    assert 'option("damage", "skip")' in message
    assert "Traceback (most recent call last)" not in message
    intact = load(spark, copy, table="commitlog", damage="skip").count()
    lost = load(spark, copy, table="damage").collect()
    assert 0 < intact < 1489
    assert sum(row["size"] for row in lost) >= 65_536


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ({"startOffsets": "x"}, None, "is unknown; did you mean startingOffsets"),
        ({"table": "index", "topic": "a"}, None, "option topic does not apply to table index"),
        ({"pushDownPredicate": "true"}, None, "is unknown; all are"),
        ({}, "/nowhere/at/all", "is not a store"),
        ({"columns": "nothing"}, None, "table messages has no column 'nothing'"),
    ],
)
def test_load_refuses_what_it_cannot_mean_with_one_plain_sentence(
    spark, basic, options, path, message
):
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        load(spark, path or basic, **options)
    told = str(caught.value)
    assert message in told
    assert "Traceback" not in told


def test_a_schema_of_other_types_is_refused(spark, basic):
    reader = spark.read.format("rocketstore").schema("topic string, queueId string")
    with pytest.raises(Exception, match="column queueId of table messages is int"):
        reader.load(str(basic)).collect()


def test_spark_finds_the_source_by_itself():
    from pyspark_rocketstore import DefaultSource  # noqa: PLC0415 - the module under test
    from rocketstore.pipeline.source import StoreDataSource  # noqa: PLC0415 - as above

    assert DefaultSource is StoreDataSource
    assert DefaultSource.name() == "rocketstore"


def test_a_session_of_this_package_has_the_source(spark, basic):
    here = session(master="local[2]")
    assert load(here, basic, table="segments").count() == 19


def test_frames_are_written_and_joined_like_any_other(spark, basic, tmp_path):
    frame = load(spark, basic, table="commitlog")
    frame.write.parquet(str(tmp_path / "out"))
    back = spark.read.parquet(str(tmp_path / "out"))
    assert back.count() == 1489
    entries = load(spark, basic, table="consumequeue")
    joined = back.join(entries, ["topic", "queueId", "queueOffset", "physicalOffset", "size"])
    assert joined.count() == 1489
