"""The named scenarios: what is done, how much of it, and the ratio to reach.

A scenario is data. Both sides get the same specification: ``bench/worker.py`` carries it out on
rocketstore, ``tests/interop/java`` (``Bench.java``) on Apache RocketMQ's ``DefaultMessageStore``.
"""

from bench.scenario.definition import Measure, Scenario, Verdict
from bench.scenario.registry import SCENARIOS, select

__all__ = ["SCENARIOS", "Measure", "Scenario", "Verdict", "select"]
