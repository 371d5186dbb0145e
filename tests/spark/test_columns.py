"""Spark asks the source for the columns that a query uses: bodies nobody wants stay unread."""

import pytest

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.pipeline import register

pytestmark = [pytest.mark.spark]

COUNT, BODY_BYTES = 60, 50_000
BODIES = COUNT * BODY_BYTES


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("columns") / "store"
    config = StoreConfig(mapped_file_size_commit_log=4 << 20, retention=False)
    with MessageStore.open(root, config) as store:
        for number in range(COUNT):
            body = number.to_bytes(4, "big") * (BODY_BYTES // 4)
            store.put(Message(topic=f"Topic{number % 3}", body=body, tags="a"), queue_id=number % 2)
    return str(root)


@pytest.fixture(scope="module")
def frame(spark, root):
    loaded = spark.read.format("rocketstore").load(root)
    loaded.createOrReplaceTempView("log")
    yield loaded
    spark.catalog.dropTempView("log")


@pytest.fixture(scope="module")
def run(spark, root):
    """Return the rows of a query, sorted, and the bytes that Python sent to Spark for it."""
    sent = [0]

    def ran(query):
        rows = sorted(map(tuple, query.collect()))
        sent.append(_sent_so_far(query._jdf.queryExecution().executedPlan()))
        return rows, sent[-1] - sent[-2]

    ran(spark.read.format("rocketstore").option("columns", "queueId").load(root))
    return ran


def _sent_so_far(plan):
    """Spark counts for all scans of a source together: every query of this module is `run`."""
    found = plan.metrics().get("pythonDataReceived")
    children = plan.children()
    below = [_sent_so_far(children.apply(at)) for at in range(children.size())]
    return max([*below, found.get().value() if found.isDefined() else 0])


COUNTS = [(f"Topic{number}", COUNT // 3) for number in range(3)]
OF_ONE = [("Topic1", number) for number in range(COUNT // 6)] * 2


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT topic, count(*) FROM log GROUP BY topic", COUNTS),
        ("SELECT count(*) FROM log", [(COUNT,)]),
        ("SELECT DISTINCT queueId FROM log", [(0,), (1,)]),
        ("SELECT topic, queueOffset FROM log WHERE topic = 'Topic1'", OF_ONE),
        ("SELECT tags FROM log ORDER BY physicalOffset LIMIT 2", [("a",)] * 2),
        (
            "SELECT a.topic, count(b.tags) FROM log a JOIN log b USING (physicalOffset) GROUP BY 1",
            COUNTS,
        ),
        (
            "SELECT queueId FROM log WHERE physicalOffset = (SELECT max(physicalOffset) FROM log)",
            [((COUNT - 1) % 2,)],
        ),
    ],
)
def test_a_query_that_names_no_body_reads_none(spark, frame, run, query, expected):
    rows, sent = run(spark.sql(query))
    assert rows == sorted(expected)
    assert 0 < sent < BODIES / 20


def test_a_query_gets_every_column_that_it_names(frame, run):
    whole, sent = run(frame.select("physicalOffset", "body", "topic"))
    assert sent > BODIES
    assert [int.from_bytes(body[:4], "big") for _, body, _ in whole] == list(range(COUNT))
    lengths, sent = run(frame.where("length(body) > 0").select("topic"))
    assert len(lengths) == COUNT
    assert sent > BODIES  # for the condition alone
    assert run(frame.select("topic", "physicalOffset"))[0] == sorted(
        (topic, at) for at, _, topic in whole
    )
    assert run(frame)[1] > BODIES
    assert len(run(frame.drop("properties").distinct())[0]) == COUNT


def test_columns_of_kafka_s_names_are_left_out_alike(spark, root, run):
    frame = spark.read.format("rocketstore").option("columnNames", "kafka").load(root)
    rows, sent = run(frame.groupBy("topic").count())
    assert rows == COUNTS
    assert 0 < sent < BODIES / 20
    assert run(frame.selectExpr("sum(length(value))"))[0] == [(BODIES,)]


def test_a_session_has_the_rule_once(spark):
    register(spark)
    register(spark)
    rules = spark._jsparkSession.experimental().extraOptimizations()
    assert [rules.apply(at).ruleName() for at in range(rules.size())] == ["ColumnPruning"]
