"""How much the fault tests do: named settings of the environment, with what CI does by default.

========================================  ==========================  ========================
variable                                  default                     with kernels switched off
========================================  ==========================  ========================
``ROCKETSTORE_KILLS``                     100                         24
``ROCKETSTORE_POWER_CUT_SEEDS``           100 (or ``17:18``: a range)  40
``ROCKETSTORE_MACHINE_EXAMPLES``          40                          10
``ROCKETSTORE_ODD_REQUESTS``              3000                        3000
``ROCKETSTORE_ODD_ROUNDS``                120                         120
``ROCKETSTORE_FAULT_SEED``                0                           0
``ROCKETSTORE_FAULT_WALK``                some                        some
========================================  ==========================  ========================

``ROCKETSTORE_FAULT_WALK=all`` takes every step of each walk: of calls, lines, kills, rounds.
``ROCKETSTORE_FAULT_SEED`` is added to every seed, so that a long search never repeats itself.
"""

import os
from typing import Final

from rocketstore.scan import kernels

WALKS_ALL: Final = os.environ.get("ROCKETSTORE_FAULT_WALK") == "all"


def stride(steps: int) -> int:
    """Return how many steps a walk takes at once; one where all are asked for."""
    return 1 if WALKS_ALL else steps


def kill_count() -> int:
    """Return how many processes are killed."""
    return _number("ROCKETSTORE_KILLS", 100, 24)


def machine_example_count() -> int:
    """Return how many programs the state machine runs."""
    return _number("ROCKETSTORE_MACHINE_EXAMPLES", 40, 10)


def odd_request_count() -> int:
    """Return how many requests a broker gets that no client would send."""
    return _number("ROCKETSTORE_ODD_REQUESTS", 3000, 3000)


def odd_round_count() -> int:
    """Return how many rounds of hostile clients a broker gets."""
    return _number("ROCKETSTORE_ODD_ROUNDS", 120, 120)


def base_seed() -> int:
    """Return what is added to seeds."""
    return _number("ROCKETSTORE_FAULT_SEED", 0, 0)


def power_cut_seeds() -> range:
    """Return the seeds of the simulated power cuts."""
    text = os.environ.get("ROCKETSTORE_POWER_CUT_SEEDS", "100" if kernels.is_compiled() else "40")
    first, _, last = text.rpartition(":")
    start = int(first) if first else base_seed()
    return range(start, int(last) if first else start + int(last))


def _number(name: str, default: int, without_kernels: int) -> int:
    return int(os.environ.get(name, default if kernels.is_compiled() else without_kernels))
