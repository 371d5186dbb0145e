"""``rocketstore bench``: it counts what it measures and leaves nothing behind."""

import json

import pytest

from rocketstore.cli.application import run
from support.golden import golden_case

SMALL = ["--set", "mappedFileSizeCommitLog=1048576", "--set", "maxHashSlotNum=500",
         "--set", "maxIndexNum=2000"]  # fmt: skip


@pytest.mark.parametrize("what", ["put", "get"])
def test_bench_handles_every_message_and_removes_its_store(what, tmp_path, capsys):
    command = ["bench", what, "--messages", "500", "--body-size", "10", "--dir", str(tmp_path)]
    assert run([*command, *SMALL, "--output", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["messages"] == 500
    assert figures["messagesPerSecond"] > 0
    assert list(tmp_path.iterdir()) == []


def test_bench_scan_counts_the_records_of_the_log(capsys):
    store = golden_case("basic") / "store"
    assert run(["bench", "scan", str(store), "--output", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["records"], figures["damagedBytes"]) == (1489, 0)


def test_a_measurement_of_nothing_is_refused_and_a_refusal_says_why(tmp_path, capsys):
    for what in ("put", "get"):
        command = ["bench", what, "--dir", str(tmp_path), *SMALL]
        for wrong in (["--messages", "0"], ["--messages", "1", "--body-size", "-1"]):
            assert run([*command, *wrong]) == 2
            assert "Must be >=" in capsys.readouterr().err
        assert run([*command, "--messages", "1", "--body-size", "5000000"]) != 0
        assert "5000000 bytes exceeds maxMessageSize" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
