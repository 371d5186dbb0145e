"""A log in two directories on Spark's workers; what each job does is tested in tests/unit."""

import msgspec
import pytest

from rocketstore import MessageStore, pipeline
from rocketstore.errors import ConfigError
from support.clock import Clock
from support.small_store import CONFIG, messages, put_all
from support.trees import tree

pytestmark = [pytest.mark.spark]


def test_all_jobs_read_both_directories_of_a_log(spark, tmp_path):
    root = tmp_path / "store"
    paths = f"{root}/commitlog,{tmp_path}/other"
    config = msgspec.structs.replace(CONFIG, store_path_commit_log=paths)
    clock = Clock()
    with MessageStore.open(root, config, clock=clock, threads=False) as store:
        put_all(store, messages(300), clock)
    before = tree(root / "consumequeue")
    reader = spark.read.format("rocketstore").option("storePathCommitLog", paths)
    assert reader.load(str(root)).count() == 300
    assert pipeline.audit(spark, root, config=config).findings == []
    assert (
        pipeline.report(spark, root, tmp_path / "report", config=config).summary["messages"] == 300
    )
    assert pipeline.archive(spark, root, tmp_path / "archive", config=config).records == 300
    assert pipeline.rebuild(spark, root, config=config).record_count == 300
    assert tree(root / "consumequeue") == before
    with pytest.raises(ConfigError, match="as of a log in 2 directories"):
        pipeline.rebuild(spark, root)
