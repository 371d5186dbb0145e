"""``rocketstore pipeline restore``: a store from an archive, whole or a selection of its messages.

`restore_job` is the call and plans the CommitLog files; `restore_task` writes one file each, from
the rows of the archive. Queues and index are then made by `pipeline.jobs.rebuild`:
``restore(spark, "data/archive", "data/orders", topics=["orders"])``.

Law: bytes that the archive lacks are an error, unless the caller allows gaps.
"""
