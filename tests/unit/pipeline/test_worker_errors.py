"""What a worker raised is found in what Spark says."""

from __future__ import annotations

from rocketstore import errors
from rocketstore.pipeline.jobs.execution import worker_error

TOLD = """[UDTF_EXEC_ERROR] Job aborted due to stage failure: Task 3 in stage 7.0 failed:
Traceback (most recent call last):
  File "x.py", line 3, in <module>
KeyError: 'a'

The above exception was the direct cause of the following exception:

rocketstore.errors.StoreDamagedError: 17 bytes at physical offset 0 are damaged; run repair

\tat org.apache.spark.api.python.BasePythonRunner
"""


def test_the_error_of_this_package_is_found_with_its_kind_and_words() -> None:
    found = worker_error(TOLD)
    assert type(found) is errors.StoreDamagedError
    assert str(found) == "17 bytes at physical offset 0 are damaged; run repair"


def test_an_error_that_is_not_ours_is_left_to_spark() -> None:
    assert worker_error("Traceback\nValueError: no") is None
    assert worker_error("rocketstore.errors.NoSuchError: what") is None
