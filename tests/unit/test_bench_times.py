"""What a benchmark counts as CPU time, also when workers end between two looks."""

from bench.pipeline._child import spent_cpu_s

DRIVER, DAEMON, WORKER, NEW = (1, 0.0), (2, 0.0), (3, 0.0), (4, 9.0)


def test_what_every_process_used_is_added():
    before = {DRIVER: (1.0, 0.0), WORKER: (2.0, 0.0)}
    after = {DRIVER: (1.5, 0.0), WORKER: (4.0, 0.0), NEW: (3.0, 0.25)}
    assert spent_cpu_s(before, after) == 0.5 + 2.0 + 3.25


def test_a_worker_that_was_waited_for_counts_once():
    before = {DRIVER: (1.0, 0.0), DAEMON: (1.0, 5.0), WORKER: (2.0, 0.0)}
    after = {DRIVER: (1.0, 0.0), DAEMON: (1.0, 5.0 + 2.5)}
    assert spent_cpu_s(before, after) == 0.5


def test_workers_that_nobody_waited_for_take_nothing_away():
    before = {DRIVER: (1.0, 0.0), DAEMON: (1.0, 50.0), WORKER: (20.0, 0.0)}
    after = {DRIVER: (4.0, 0.0), NEW: (2.0, 0.0)}
    assert spent_cpu_s(before, after) == 5.0
