"""What jobs take alike."""

import inspect

import pytest

import rocketstore
from rocketstore import ConfigError, StoreConfig, pipeline
from support.golden import golden_case
from support.trees import tree

JOBS = [
    getattr(package, name)
    for package in (pipeline, rocketstore)
    for name in package.__all__
    if inspect.isfunction(getattr(package, name))
    and "config" in inspect.signature(getattr(package, name)).parameters
]


def test_all_jobs_are_walked():
    names = {job.__name__ for job in JOBS}
    assert names >= {"archive", "audit", "prove_rebuild", "rebuild", "report", "restore"}
    assert names >= {"verify_store", "repair_store"}


@pytest.mark.parametrize("config", [{}, {"fileReservedTime": "48"}, StoreConfig])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_settings_of_another_kind_are_refused_before_any_work(tmp_path, job, config):
    given = {"spark": None, "archive": tmp_path, "target": tmp_path / "to", "out": tmp_path / "to"}
    given |= dict.fromkeys(("store", "path", "root"), golden_case("basic") / "store")
    names = inspect.signature(job).parameters
    with pytest.raises(ConfigError, match=r"^config is a StoreConfig, not .*load_config"):
        job(**{name: one for name, one in given.items() if name in names}, config=config)
    assert tree(tmp_path) == {}
