"""What a worker raised is found in what Spark says."""

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

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
    told = """An error occurred.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage"""
    with pytest.raises(errors.SparkJobError) as caught, plain_failure():
        raise PySparkException(told)
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
    told = f"An error occurred while calling o1404.getResult.\n: org.apache.spark.{name}: {said}"
    with pytest.raises(errors.SparkJobError) as caught, plain_failure():
        raise Py4JError(f"{told}\n\tat org.apache.spark.scheduler.DAGScheduler")
    assert caught.value.message == f"Spark gave the job up: {said}"


def test_of_several_causes_the_aborted_stage_is_said_or_else_the_last():
    told = (
        "An error occurred.\n: a.B: Exception thrown in awaitResult: \n\tat x\nCaused by: c.D: why"
    )
    with pytest.raises(errors.SparkJobError, match=r"gave the job up: why;"), plain_failure():
        raise Py4JError(told)
    told += "\nCaused by: e.F: Job aborted due to stage failure: Task 0\nCaused by: java.io.EOF"
    with (
        pytest.raises(errors.SparkJobError, match=r"gave the job up: Job .* Task 0;"),
        plain_failure(),
    ):
        raise Py4JError(told)


def test_an_interrupt_stays_one_whatever_the_clean_up_of_pyspark_meets():
    def interrupted() -> None:
        try:
            try:
                raise KeyboardInterrupt
            finally:
                raise Py4JError("An error occurred while calling o1.getResult")
        finally:
            raise Py4JError("An error occurred while calling o1.close")

    with pytest.raises(KeyboardInterrupt), plain_failure():
        interrupted()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("Traceback\nKeyError: 'a'\n\tat java", "KeyError: 'a'"),
        # What is not called an error comes after its traceback.
        (
            "Traceback:\n  File x\n    y()\npyarrow.lib.ArrowInvalid: no\n\n\tat java",
            r"pyarrow\.lib\.ArrowInvalid: no",
        ),
    ],
)
def test_an_error_of_another_package_is_named(told, said):
    found = pytest.raises(errors.SparkJobError, match=f"gave the job up: {said}")
    with found, plain_failure():
        raise PySparkException(told)


def test_what_a_clean_up_meets_once_spark_was_stopped_is_not_the_reason():
    def job() -> None:
        try:
            raise Py4JError("x\n: java.lang.Y: Job 3 cancelled")
        finally:
            raise Py4JError("x\n: java.lang.NullPointerException: endpoint() is null")

    with pytest.raises(errors.SparkJobError) as caught, plain_failure():
        job()
    assert caught.value.message == "Spark gave the job up: Job 3 cancelled"


def test_the_words_of_pyspark_go_before_those_of_java_that_they_are_made_of():
    error = PySparkException("told:\nrocketstore.errors.StoreError: gone")
    error.__context__ = Py4JError("x\n: org.apache.spark.Y: [PYTHON_EXCEPTION] StoreError")
    with pytest.raises(errors.StoreError, match="gone"), plain_failure():
        raise error


def test_what_pyspark_meets_in_a_stopped_session_is_an_error_of_the_job():
    with pytest.raises(errors.SparkJobError, match="Spark gave the job up"), plain_failure():
        raise AttributeError("'NoneType' object has no attribute 'sc'")
    with pytest.raises(AttributeError, match="ours"), plain_failure():
        raise AttributeError("ours")
