"""Restore without Spark: each task pickled as Spark does, one after the other."""

from pathlib import Path
from typing import Any
from unittest import mock

from rocketstore.pipeline.jobs.execution import map_tasks
from rocketstore.pipeline.jobs.restore import restore_job
from rocketstore.pipeline.jobs.restore.restore_job import RestoreResult
from support.arrow_frames import Frames


def restored(
    archive: Path | str, target: Path | str, *, run: Any = map_tasks, **given: Any
) -> RestoreResult:
    """Restore the log alone, unless asked for more; `run` takes the place of `map_tasks`."""
    with mock.patch.object(restore_job, "map_tasks", run):
        return restore_job.restore(Frames(), archive, target, **{"log_only": True} | given)
