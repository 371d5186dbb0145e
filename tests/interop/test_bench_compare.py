"""The comparison itself: what a ratio says, and that both sides do a scenario's work."""

from pathlib import Path
from typing import Any

import pytest

from support.java_store import require_java
from support.patience import START_S
from support.python_process import run_python

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    import bench.comparison  # noqa: PLC0415 - not on the path of the other tests
    import bench.scenario  # noqa: PLC0415

    return bench


def _outcome(bench: Any, verdict: str, target: float, ours: list[float], java: list[float]) -> Any:
    measure = bench.scenario.Measure("m", "seconds", "s", bench.scenario.Verdict[verdict], target)
    scenario = bench.scenario.SCENARIOS["query_key"]
    return bench.comparison.Outcome(scenario, measure, figures={"ours": ours, "java": java})


def test_a_rate_is_met_when_the_median_round_reaches_it(bench):
    outcome = _outcome(bench, "RATE", 1.5, [100, 160, 400], [100, 100, 200])
    assert outcome.verdicts == [1.0, 1.6, 2.0]
    assert outcome.met
    assert not _outcome(bench, "RATE", 1.5, [100, 140, 400], [100, 100, 200]).met


def test_a_latency_is_met_when_it_is_small_enough(bench):
    assert _outcome(bench, "LATENCY", 3.0, [30.0], [10.0]).met
    assert not _outcome(bench, "LATENCY", 3.0, [31.0], [10.0]).met


def test_a_restart_counts_how_often_java_s_time_holds_ours(bench):
    outcome = _outcome(bench, "SPEED_UP", 5.0, [0.5], [3.0])
    assert outcome.median == 6.0
    assert outcome.met


def test_a_target_against_java_is_not_judged_without_java(bench):
    outcome = _outcome(bench, "RATE", 1.5, [100.0], [])
    assert outcome.met is None
    assert _outcome(bench, "MOST", 2.0, [1.0], []).met


def test_a_name_s_beginning_selects_its_scenarios(bench):
    chosen = [scenario.name for scenario in bench.scenario.select(["get_32", "query_key"])]
    assert chosen == ["get_32_copied_100b", "get_32_copied_1k", "get_32_copied_4k", "query_key"]
    with pytest.raises(KeyError):
        bench.scenario.select(["no_such_scenario"])


@pytest.mark.java
def test_both_sides_run_the_scenarios(tmp_path):
    require_java()
    names = [
        "put_1k",
        "put_client_batch_32_1k",
        "get_32_copied_1k",
        "query_key",
        "restart_crash_1k",
        "catch_up_1k",
    ]
    command = (ROOT / "bench/compare", "--smoke", "--directory", tmp_path, *names)
    result = run_python(*command, env={"COLUMNS": "200"}, limit_s=START_S)
    assert result.returncode == 0, result.stderr
    for name in names:
        lines = [line for line in result.stdout.splitlines() if name in line]
        assert lines, f"no figures of {name}"
        assert all("-" not in line.split("│")[3] for line in lines), "a side gave no figure"
    assert list(tmp_path.iterdir()) == []


def test_held_pulls_of_many_connections_are_woken(tmp_path):
    result = run_python(ROOT / "bench/broker", "held", "--smoke", "--directory", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "woken p99" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("verdict", "times"), [("RATE", 2.0), ("LATENCY", 0.5), ("MOST", 0.5)])
def test_a_figure_beside_another_checkout_s_says_how_much_better_it_is(bench, verdict, times):
    outcome = _outcome(bench, verdict, 1.0, [20.0], [10.0])
    outcome.figures["before"] = [10.0]
    assert outcome.times_before == [times]
