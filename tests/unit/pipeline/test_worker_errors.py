"""What a worker raised is found in what Spark says."""

import pytest

from rocketstore import errors
from rocketstore.pipeline.jobs.execution import plain_failure, worker_error

TOLD = """[UDTF_EXEC_ERROR] Job aborted due to stage failure: Task 3 in stage 7.0 failed:
Traceback (most recent call last):
  File "x.py", line 3, in <module>
KeyError: 'a'

The above exception was the direct cause of the following exception:

rocketstore.errors.StoreDamagedError: 17 bytes at physical offset 0 are damaged; run repair

\tat org.apache.spark.api.python.BasePythonRunner
"""


def test_the_error_of_this_package_is_found_with_its_kind_and_words():
    found = worker_error(TOLD)
    assert type(found) is errors.StoreDamagedError
    assert str(found) == "17 bytes at physical offset 0 are damaged; run repair"


def test_an_error_that_is_not_ours_is_left_to_spark():
    assert worker_error("Traceback\nValueError: no") is None
    assert worker_error("rocketstore.errors.NoSuchError: what") is None


def test_what_spark_itself_could_not_do_is_one_line():
    captured = pytest.importorskip("pyspark.errors").PySparkException
    told = """An error occurred.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage"""
    with pytest.raises(errors.SparkJobError) as caught, plain_failure():
        raise captured(told)
    assert caught.value.message == (
        "Spark gave the job up: Job aborted due to stage failure: Task 0 failed 1 times"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SparkException", "Job 12 cancelled because SparkContext was shut down"),
        ("sql.X$SparkConflictException", "[CONCURRENT] two: at once"),
    ],
)
def test_what_java_raised_is_said_and_not_what_python_called(name, said):
    py4j = pytest.importorskip("py4j.protocol")
    told = f"An error occurred while calling o1404.getResult.\n: org.apache.spark.{name}: {said}"
    with pytest.raises(errors.SparkJobError) as caught, plain_failure():
        raise py4j.Py4JError(f"{told}\n\tat org.apache.spark.scheduler.DAGScheduler")
    assert caught.value.message == f"Spark gave the job up: {said}"


def test_of_several_causes_the_aborted_stage_is_said_or_else_the_last():
    py4j = pytest.importorskip("py4j.protocol")
    told = (
        "An error occurred.\n: a.B: Exception thrown in awaitResult: \n\tat x\nCaused by: c.D: why"
    )
    with pytest.raises(errors.SparkJobError, match=r"gave the job up: why;"), plain_failure():
        raise py4j.Py4JError(told)
    told += "\nCaused by: e.F: Job aborted due to stage failure: Task 0\nCaused by: java.io.EOF"
    with (
        pytest.raises(errors.SparkJobError, match=r"gave the job up: Job .* Task 0;"),
        plain_failure(),
    ):
        raise py4j.Py4JError(told)


def test_an_interrupt_stays_one_whatever_the_clean_up_of_pyspark_meets():
    py4j = pytest.importorskip("py4j.protocol")

    def interrupted() -> None:
        try:
            try:
                raise KeyboardInterrupt
            finally:
                raise py4j.Py4JError("An error occurred while calling o1.getResult")
        finally:
            raise py4j.Py4JError("An error occurred while calling o1.close")

    with pytest.raises(KeyboardInterrupt), plain_failure():
        interrupted()


def test_a_fault_of_ours_is_named():
    captured = pytest.importorskip("pyspark.errors").PySparkException
    found = pytest.raises(errors.SparkJobError, match="gave the job up: KeyError: 'a'")
    with found, plain_failure():
        raise captured("Traceback\nKeyError: 'a'\n\tat java")


def test_an_error_that_is_not_called_one_is_said_after_its_traceback():
    captured = pytest.importorskip("pyspark.errors").PySparkException
    found = pytest.raises(errors.SparkJobError, match=r"job up: pyarrow\.lib\.ArrowInvalid: no")
    with found, plain_failure():
        raise captured("Traceback:\n  File x\n    y()\npyarrow.lib.ArrowInvalid: no\n\n\tat java")


def test_what_a_clean_up_meets_once_spark_was_stopped_is_not_the_reason():
    py4j = pytest.importorskip("py4j.protocol")

    def job() -> None:
        try:
            raise py4j.Py4JError("x\n: java.lang.Y: Job 3 cancelled")
        finally:
            raise py4j.Py4JError("x\n: java.lang.NullPointerException: endpoint() is null")

    with pytest.raises(errors.SparkJobError) as caught, plain_failure():
        job()
    assert caught.value.message == "Spark gave the job up: Job 3 cancelled"


def test_the_words_of_pyspark_go_before_those_of_java_that_they_are_made_of():
    py4j = pytest.importorskip("py4j.protocol")
    captured = pytest.importorskip("pyspark.errors").PySparkException

    error = captured("told:\nrocketstore.errors.StoreError: gone")
    error.__context__ = py4j.Py4JError("x\n: org.apache.spark.Y: [PYTHON_EXCEPTION] StoreError")
    with pytest.raises(errors.StoreError, match="gone"), plain_failure():
        raise error


def test_what_pyspark_meets_in_a_stopped_session_is_an_error_of_the_job():
    pytest.importorskip("py4j.protocol")
    with pytest.raises(errors.SparkJobError, match="Spark gave the job up"), plain_failure():
        raise AttributeError("'NoneType' object has no attribute 'sc'")
    with pytest.raises(AttributeError, match="ours"), plain_failure():
        raise AttributeError("ours")
