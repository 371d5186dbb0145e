"""One writer per store, whichever side it is: both take the same lock on the same byte."""

import pytest

from rocketstore import MessageStore
from rocketstore.errors import StoreLockedError
from support.both_sides import all_of_ours, put_java, put_ours, sample_messages, small_config
from support.java_store import SMALL_FILES, CommandFailedError, JavaStore
from support.python_process import run_python

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("java_store")]

MESSAGES = sample_messages(30)


def test_open_beside_a_running_java_store_names_its_process(tmp_path):
    with JavaStore(tmp_path, SMALL_FILES) as java:
        put_java(java, MESSAGES)
        with pytest.raises(StoreLockedError) as refused:
            MessageStore.open(tmp_path, small_config())
        assert refused.value.owner_pid == java.pid
        put_java(java, MESSAGES)
        java.wait_dispatched()
        assert sum(stop for _, stop in java.queues().values()) == 2 * len(MESSAGES)


def test_a_refused_open_leaves_java_s_lock_alone(tmp_path):
    with JavaStore(tmp_path, SMALL_FILES) as java:
        for _ in range(2):
            with pytest.raises(StoreLockedError) as refused:
                MessageStore.open(tmp_path, small_config())
            assert refused.value.owner_pid == java.pid


def test_command_line_exits_5_and_prints_java_s_pid(tmp_path):
    source = tmp_path / "lines.txt"
    source.write_text("one\ntwo\n")
    store = tmp_path / "store"
    with JavaStore(store, SMALL_FILES) as java:
        put_java(java, MESSAGES)
        command = ("-m", "rocketstore.cli", "store", "import", store, "--topic", "orders", source)
        result = run_python(*command, env={"COLUMNS": "200"})
        assert result.returncode == 5, result.stderr
        assert str(java.pid) in result.stderr


def test_java_does_not_start_while_we_hold_the_store(tmp_path):
    with MessageStore.open(tmp_path, small_config()) as ours:
        put_ours(ours, MESSAGES)
        ours.wait_dispatched()
        with pytest.raises(CommandFailedError, match="Lock failed,MQ already started"):
            JavaStore(tmp_path, SMALL_FILES)
        put_ours(ours, MESSAGES)
        ours.wait_dispatched()
        assert sum(map(len, all_of_ours(ours).values())) == 2 * len(MESSAGES)


def test_java_starts_as_soon_as_we_close(tmp_path):
    with MessageStore.open(tmp_path, small_config()) as ours:
        put_ours(ours, MESSAGES)
    with JavaStore(tmp_path, SMALL_FILES) as java:
        assert sum(stop for _, stop in java.queues().values()) == len(MESSAGES)
