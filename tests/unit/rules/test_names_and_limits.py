"""What stands once, and where it cannot: the compiled loops, and the SQL of a report."""

import re
from pathlib import Path

import duckdb
import pytest

import rocketstore.native
from rocketstore.format.properties import GIVE_BACK_ROOM, PROPERTIES_SIZE_MAX
from rocketstore.pipeline.jobs.report.report_tables import VIEWS
from rocketstore.rules.topics import is_reserved, purpose_of

NATIVE = Path(rocketstore.native.__file__).parent


@pytest.mark.parametrize("module", ["log_end.py", "put.py"])
def test_what_is_compiled_leaves_to_the_writer_what_leaves_no_room_to_be_given_back(module):
    # Numbers, as a name would be looked up at each put.
    numbers = re.findall(r"> (\d+) - (\d+)", (NATIVE / module).read_text())
    assert numbers == [(str(PROPERTIES_SIZE_MAX), str(GIVE_BACK_ROOM))]


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
