"""The last part of the demo: the PyPI client, in an environment of its own, at a broker."""

import subprocess

from support.other_clients import python_client, required
from support.patience import START_S
from support.repository import ROOT


def test_demo_ends_with_a_client_at_a_broker_and_how_far_its_group_is_behind():
    required(python_client)  # the demo installs one of its own
    command = [str(ROOT / "scripts" / "demo-broker")]
    done = subprocess.run(command, check=False, timeout=START_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ready" in done.stderr.splitlines()
    assert "received   1,000 of them as group gate" in done.stdout
    lag = [line.split() for line in done.stdout.splitlines() if line.startswith("gate ")]
    assert lag == [["gate", "boarding", str(queue), "250", "300", "50"] for queue in range(4)]
