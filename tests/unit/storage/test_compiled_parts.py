"""Nothing is lost silently: what does not run compiled is said, and why."""

import json
import sys

import pytest

from rocketstore import MessageStore, StoreConfig
from rocketstore.cli.application import run
from rocketstore.scan import kernels
from support.python_process import printed
from support.said import capture_logs

SWITCHED_OFF = """
import json
from rocketstore.scan.kernels import compiled_parts
print(json.dumps(compiled_parts()))
"""


OPENED = """
import sys
from rocketstore import MessageStore
MessageStore.open(sys.argv[1], threads=False).close()
print("rocketstore.native.walk" in sys.modules, "rocketstore.native.sends" in sys.modules)
"""


@pytest.fixture(autouse=True)
def asked_afresh():
    for question in (kernels.compiled_parts, kernels.note_missing):
        question.cache_clear()
    yield
    for question in (kernels.compiled_parts, kernels.note_missing):
        question.cache_clear()


@pytest.mark.skipif(not kernels.is_compiled(), reason="says what is compiled")
def test_all_parts_of_a_build_are_compiled_and_the_store_and_the_command_line_say_so(
    tmp_path, capsys
):
    assert set(kernels.compiled_parts().values()) == {"compiled"}
    count = len(kernels.compiled_parts())
    with MessageStore.open(tmp_path, StoreConfig(), threads=False) as store:
        assert store.runtime_info()["compiledParts"] == f"{count} of {count} parts"
    assert run(["--version", "--verbose"]) == 0
    said = capsys.readouterr().out
    assert "native.walk: compiled\n" in said
    assert "native.put: compiled\n" in said


def test_a_part_that_was_switched_off_names_the_switch():
    said = printed(SWITCHED_OFF, ROCKETSTORE_KERNELS="off")
    assert set(json.loads(said).values()) == {"switched off by ROCKETSTORE_KERNELS"}


@pytest.mark.skipif(not kernels.is_compiled(), reason="takes one compiled part away")
def test_a_part_that_was_not_built_is_reported_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rocketstore.native.group", None)
    with capture_logs() as logs:
        for name in ("a", "b"):
            with MessageStore.open(tmp_path / name, StoreConfig(), threads=False) as store:
                info = store.runtime_info()["compiledParts"]
    lines = [line for line in logs if line["event"] == "parts.not_compiled"]
    assert len(lines) == 1
    assert "native.group: not built for this Python" in lines[0]["compiled"]
    assert info == lines[0]["compiled"]


def test_parts_that_lack_for_one_reason_are_named_with_it_once(monkeypatch):
    states = {"native.walk": "compiled", "native.put": "why", "native.page": "why"}
    monkeypatch.setattr(kernels, "compiled_parts", lambda: states)
    assert kernels.compiled_summary() == "1 of 3 parts; native.put, native.page: why"


def test_an_opening_loads_no_part_of_a_broker(tmp_path):
    assert printed(OPENED, str(tmp_path / "store")) == "True False\n"
