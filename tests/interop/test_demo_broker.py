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
    assert [row[:3] for row in lag] == [["gate", "boarding", str(queue)] for queue in range(4)]
    # Which queue a message goes to is the client's: it begins again with a new route.
    offsets, stops, lags = zip(*(map(int, row[3:]) for row in lag), strict=True)
    assert (sum(offsets), sum(stops)) == (1000, 1200)
    assert lags == tuple(stop - offset for offset, stop in zip(offsets, stops, strict=True))
