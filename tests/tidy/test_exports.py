"""What a program may need to name is a name of ``rocketstore`` itself."""

import builtins
import inspect
import re
import tomllib

import pytest

import rocketstore
from rocketstore import MessageStore, ReadOnlyStore, errors, pipeline
from support.repository import ROOT

INTERNAL = {
    "RecordLog", "NoReturn", "Self", "Iterator", "Path", "StoreLayout", "Future", "Callable",
}  # fmt: skip
"""Of Python, or of the pipeline."""


def test_every_public_name_leads_to_a_thing_of_that_name():
    assert [getattr(rocketstore, one).__name__ for one in rocketstore.__all__] == [
        *rocketstore.__all__
    ]


def test_every_error_is_a_public_name():
    named = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.RocketStoreError)
    }
    assert named - set(rocketstore.__all__) == set()


@pytest.mark.parametrize("name", pipeline.__all__)
def test_every_answer_of_a_job_is_a_public_name(name):
    function = getattr(pipeline, name)
    if not inspect.isfunction(function):
        assert function.__name__ == name
        return
    answer = inspect.signature(function).return_annotation
    of_others = {"SparkSession", "Iterator[RecordBatch]"}  # the second for Spark's mapInArrow
    assert answer in {*pipeline.__all__, *of_others, "None"}


@pytest.mark.parametrize("store", [MessageStore, ReadOnlyStore])
def test_every_type_that_a_store_answers_with_is_a_public_name(store):
    missing = set()
    for name, member in inspect.getmembers(store):
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not callable(function):
            continue
        answer = inspect.signature(function).return_annotation
        for word in re.findall(r"[A-Za-z_]+", str(answer)):
            if not (hasattr(builtins, word) or word in rocketstore.__all__ or word in INTERNAL):
                missing.add((name, word))
    assert missing == set()


def test_the_version_is_the_package_s():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert rocketstore.__version__ == project["version"]
