"""The tables of docs/how-it-works/time.md name every module that knows a time, and which."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "rocketstore"
FIELDS_ONLY = ("format/", "scan/", "native/row.py", "native/walk.py")
PASSED_IN_MONOTONIC = {
    "replication/link.py", "native/group.py", "pipeline/streaming/stream_reader.py", "cli/bench.py",
    "remoting/channel.py", "nameserver/requests.py", "nameserver/service.py",
}  # fmt: skip
"""What these call their clock is a monotonic one."""

SIGNS = {
    "wall": r"time\.time\(|\btime_ns\(\)|\bsystem_clock_ms\b|\bsystem_ns\(|clock\(\)"
    r"|now_ms\(\)|datetime\.now\(|parts\.clock\b",
    "monotonic": r"monotonic\w*\(|perf_counter|monotonic_ns",
    "store time": r"store_timestamp|STORE_TIMESTAMP",
    "born time": r"born_timestamp|BORN_TIMESTAMP",
    "file time": r"st_mtime|mtime_ns",
}


def known_in(text: str, module: str) -> set[str]:
    found = {clock for clock, sign in SIGNS.items() if re.search(sign, text)}
    if module in PASSED_IN_MONOTONIC and "wall" in found:
        found = found - {"wall"} | {"monotonic"}
    return found


def rows() -> list[tuple[list[str], list[str]]]:
    page = (ROOT / "docs/how-it-works/time.md").read_text("utf-8")
    cells = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")]
    return [
        (re.findall(r"`([a-z_/]+\.py)`", where), [clock.strip() for clock in clocks.split(",")])
        for _, where, clocks, _ in (row for row in cells if len(row) == 4)
        if ".py" in where
    ]


def test_every_time_that_a_module_knows_is_in_the_tables():
    told = {(one, clock) for modules, clocks in rows() for one in modules for clock in clocks}
    found = {
        (module, clock)
        for path in SOURCE.rglob("*.py")
        if not (module := path.relative_to(SOURCE).as_posix()).startswith(FIELDS_ONLY)
        for clock in known_in(path.read_text("utf-8"), module)
    }
    assert found - told == set(), "name these in docs/how-it-works/time.md"


def test_the_tables_name_nothing_that_is_not_there():
    named = [(module, clocks) for modules, clocks in rows() for module in modules]
    known = {module: known_in((SOURCE / module).read_text("utf-8"), module) for module, _ in named}
    assert {clock for _, clocks in named for clock in clocks} == set(SIGNS)
    assert [(one, clocks) for one, clocks in named if not known[one] & set(clocks)] == []
