"""``rocketstore config show``."""

import json

from rocketstore.cli.application import run


def test_origin_of_every_value_is_shown(tmp_path, capsys, monkeypatch):
    conf = tmp_path / "broker.conf"
    conf.write_text("deleteWhen = 05\nfileReservedTime=48\nbrokerName=a\n")
    monkeypatch.setenv("ROCKETSTORE_FILE_RESERVED_TIME", "24")
    command = ["config", "show", "--origin", "--config", str(conf)]
    assert run([*command, "--set", "maxMessageSize=65536", "--output", "json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["deleteWhen"]["value"] == "05"
    assert rows["deleteWhen"]["origin"] == f"file {conf}"
    assert rows["fileReservedTime"]["origin"] == "environment ROCKETSTORE_FILE_RESERVED_TIME"
    assert rows["fileReservedTime"]["value"] == 24
    assert rows["maxMessageSize"]["origin"].startswith("flag")
    assert rows["flushDiskType"]["origin"] == "default"


def test_without_origin_only_values_are_shown(capsys):
    assert run(["config", "show", "--output", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(set(row) == {"key", "value"} for row in rows)
