"""What stands once, and where it cannot: the SQL of a report."""

import duckdb
import pytest

from rocketstore.pipeline.jobs.report.report_tables import VIEWS
from rocketstore.rules.topics import is_reserved, purpose_of


@pytest.mark.parametrize(
    ("topic", "purpose"),
    [
        ("SCHEDULE_TOPIC_XXXX", "delay"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "transaction"),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "transaction"),
        ("TRANS_CHECK_MAX_TIME_TOPIC", "transaction"),
        ("%RETRY%billing", "retry"),
        ("%DLQ%billing", "dead letter"),
        *((name, "system") for name in ("TBW102", "BenchmarkTest", "SELF_TEST_TOPIC")),
        *((name, "system") for name in ("OFFSET_MOVED_EVENT", "RMQ_SYS_TRACE_TOPIC")),
        ("rmq_sys_wheel_timer", "system"),
        *((name, "normal") for name in ("orders", "%LMQ%a", "%retry%g", "tbw102", "RMQ_SYSTEM")),
    ],
)
def test_a_report_says_of_a_topic_what_the_store_does(topic, purpose):
    assert purpose_of(topic) == purpose
    assert is_reserved(topic) == (purpose != "normal" or "%" in topic)
    with duckdb.connect() as connection:
        for statement in VIEWS.split(";")[:2]:
            connection.execute(statement)
        assert connection.execute("SELECT kind_of(?)", [topic]).fetchone() == (purpose,)
