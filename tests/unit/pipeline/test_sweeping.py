"""What killed jobs left is found and removed; what a running job may need never is."""

import json
import os
import signal
import subprocess
import sys

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from rocketstore import Message, MessageStore, StoreConfig
from rocketstore.cli.application import run as run_command
from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline.jobs import sweeping
from rocketstore.pipeline.jobs.publishing import published
from rocketstore.pipeline.jobs.sweeping import OWNER, sweep
from rocketstore.pipeline.sink.sink_writer import new_job, parse_sink_options, staging_root
from rocketstore.pipeline.sink.spark_sink import BatchSink, StreamSink
from support.patience import PATIENCE_S

DAY_S = 86_400

PUBLISH = """
import sys
from pathlib import Path
from rocketstore.pipeline.jobs.publishing import published
with published(sys.argv[1]) as place:
    Path(place, "inner").mkdir()
    Path(place, "inner", "file").write_bytes(bytes(1000))
    print("ready", flush=True)
    sys.stdin.read()
"""

STAGE = """
import sys
from pathlib import Path
from rocketstore.pipeline.sink.sink_writer import new_job, parse_sink_options, staging_root
options = parse_sink_options({"path": sys.argv[1], "topic": "T"}, streaming=False)
job = staging_root(options.root) / new_job(options)
(job / "00000-a.arrows").write_bytes(bytes(1000))
print("ready", flush=True)
sys.stdin.read()
"""

AWKWARD = ("back", "a store", "brack[et]", "st*ar", "100%", "库存")


class Job:
    """A process in the middle of a job."""

    def __init__(self, code, place):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", code, str(place)], **pipes)
        assert self.process.stdout.readline() == "ready\n"

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # a zombie runs no more

    def end(self):
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture(params=[PUBLISH, STAGE], ids=["unpublished", "staged"])
def job(request, tmp_path):
    made = Job(request.param, tmp_path / "back")
    yield made
    made.end()


def states(place, **asked):
    return [one["state"] for one in sweep(str(place), **{"remove": False, **asked})]


def aged(path, seconds):
    """Let all that a directory has be so much older."""
    for one in (*path.rglob("*"), path):
        then = one.lstat().st_mtime - seconds
        os.utime(one, (then, then), follow_symlinks=False)


def test_a_running_job_is_never_touched_and_a_killed_one_is_listed_and_removed(job, tmp_path):
    (held,) = sweep(str(tmp_path), remove=True)
    assert (held["state"], held["why"]) == ("held", f"process {job.process.pid} runs")
    assert states(tmp_path, remove=True, untouched_h=0) == ["held"]
    job.kill()
    before = sorted(tmp_path.rglob("*"))
    (left,) = sweep(str(tmp_path), remove=False)
    assert (left["state"], left["why"]) == ("left", "")
    assert left["size"] > 1000
    assert sorted(tmp_path.rglob("*")) == before
    assert states(tmp_path, remove=True) == ["removed"]
    assert states(tmp_path) == []


@pytest.mark.parametrize("name", AWKWARD)
def test_a_target_that_never_came_is_a_place_too(tmp_path, name):
    job = Job(PUBLISH, tmp_path / name)
    job.kill()
    job.end()
    (tmp_path / f"{name}.other").mkdir()
    assert states(tmp_path / name) == ["left"]
    assert states(tmp_path / f"{name}.other") == []
    assert states(tmp_path / name, remove=True) == ["removed"]
    assert [one.name for one in tmp_path.iterdir()] == [f"{name}.other"]


def test_what_ends_in_order_leaves_no_word_of_its_process(tmp_path):
    with published(str(tmp_path / "made")) as place:
        assert os.listdir(place) == [OWNER]  # noqa: PTH208 - the names
    assert list((tmp_path / "made").iterdir()) == []


def test_a_number_that_another_process_has_by_now_is_nobody(tmp_path):
    job = Job(PUBLISH, tmp_path / "back")
    (partial,) = tmp_path.iterdir()
    machine, pid, started = json.loads((partial / OWNER).read_text())
    (partial / OWNER).write_text(json.dumps([machine, pid, str(int(started) - 1)]))
    assert states(tmp_path) == ["left"]
    job.end()


@pytest.mark.parametrize("owner", [None, "", "{", '["another boot and namespace", 1, "5"]', "[]"])
def test_where_nothing_says_whose_it_is_a_day_without_a_change_decides(tmp_path, owner):
    partial = tmp_path / ".back.0123456789ab.partial"
    (partial / "inner").mkdir(parents=True)
    (partial / "inner/file").write_text("x")
    if owner is not None:
        (partial / OWNER).write_text(owner)
    assert states(tmp_path, remove=True) == ["held"]
    aged(partial, DAY_S - 60)
    assert states(tmp_path, remove=True) == ["held"]
    (partial / "inner/late").write_text("x")
    aged(partial, 3600)
    (found,) = sweep(str(tmp_path), remove=True)
    assert (found["state"], found["why"][:16]) == ("held", "changed 1.0 h ag")
    assert states(tmp_path, untouched_h=0.5) == ["left"]
    aged(partial, DAY_S)
    assert states(tmp_path, remove=True) == ["removed"]


def test_what_an_interrupted_commit_needs_stays_until_the_next_write(tmp_path):
    config = StoreConfig(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000)
    with MessageStore.open(tmp_path / "store", config) as opened:
        opened.put(Message(topic="T", body=b"x"))
    options = parse_sink_options({"path": str(tmp_path / "store"), "topic": "T"}, streaming=False)
    staged = staging_root(options.root) / new_job(options)
    (staged / OWNER).unlink()
    aged(staged, 2 * DAY_S)
    intent = tmp_path / "store/sink/intent.json"
    intent.write_text("whatever")
    (found,) = sweep(str(tmp_path / "store"), remove=True)
    assert (found["state"], "intent.json" in found["why"]) == ("held", True)
    intent.unlink()
    for place in (tmp_path, tmp_path / "store"):
        assert states(place) == ["left"]
    assert states(tmp_path, remove=True) == ["removed"]


@pytest.mark.parametrize("kind", [BatchSink, StreamSink])
def test_a_write_that_fails_leaves_nothing_of_what_it_made(tmp_path, kind):
    body = StructType([StructField("body", BinaryType())])
    given = {"path": str(tmp_path / "new/store"), "topic": "T"}
    given |= {"sinkId": "s"} if kind is StreamSink else {}
    sink = kind.planned(given, body, overwrite=False)
    assert states(tmp_path / "new/store") == ["held"]
    sink.abort([])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    kind.planned(given | {"path": str(tmp_path / "mine")}, body, overwrite=False).abort([])
    assert [list(one.iterdir()) for one in tmp_path.iterdir()] == [[]]


def test_what_only_looks_like_it_is_left_alone(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / ".a.0123456789ab.partial").write_text("a file")
    (tmp_path / ".b.0123456789ab.partial").symlink_to(tmp_path / "there")
    for name in (
        ".c.partial",
        ".d.0123456789.partial",
        "e.0123456789ab.partial",
        ".f.0123456789ab",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "sink/staging").mkdir(parents=True)
    (tmp_path / "sink/staging/file").write_text("x")
    assert states(tmp_path, untouched_h=0) == []


def test_a_worker_of_spark_says_the_jvm_or_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping, "is_worker", lambda: True)
    sweeping.claim(tmp_path)
    assert not (tmp_path / OWNER).exists()  # no JVM is above this process


def test_an_object_store_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="no _SUCCESS"):
        sweep("s3://bucket/place", remove=False)


def test_the_command_lists_and_removes_and_says_by_its_code_whether_anything_was_left(
    tmp_path, capsys
):
    assert run_command(["pipeline", "sweep", str(tmp_path)]) == 0
    job = Job(PUBLISH, tmp_path / "back")
    assert run_command(["pipeline", "sweep", str(tmp_path), "--remove"]) == 0
    assert f"process {job.process.pid} runs" in capsys.readouterr().out
    job.kill()
    job.end()
    assert run_command(["pipeline", "sweep", str(tmp_path), "--output", "json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["state"] == "left"
    assert run_command(["pipeline", "sweep", str(tmp_path), "--remove"]) == 1
    assert "removed" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_place_is_no_clean_one(tmp_path, capsys):
    assert run_command(["pipeline", "sweep", str(tmp_path / "other")]) == 3
    assert "other: there is no such directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("scandir", "/sink/staging cannot be read: "),
        ("unlink", "/write.* cannot be removed whole: "),
    ],
)
def test_what_may_not_be_read_or_removed_is_named(tmp_path, monkeypatch, call, said):
    options = parse_sink_options({"path": str(tmp_path / "s"), "topic": "T"}, streaming=False)
    job = staging_root(options.root) / new_job(options)
    (job / OWNER).unlink()
    (job / "00000-a.arrows").touch()
    real = getattr(os, call)

    def refuse(path, *given, **named):
        if str(path).endswith((".arrows", "staging")):
            raise PermissionError(13, "Permission denied", "f")
        return real(path, *given, **named)

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StoreError, match=f"{said}Permission denied; let"):
        sweep(str(tmp_path / "s"), remove=True, untouched_h=0)
