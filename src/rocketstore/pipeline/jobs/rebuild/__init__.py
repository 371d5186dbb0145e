"""Queues and index made again from the CommitLog: ``rocketstore pipeline rebuild``.

`log_blocks` makes rows of the log, `rebuilt_files` writes one queue or index file a task, and
`storage.recovery.replacement` puts them in the place of the old: ``rebuild(spark, "data/store")``.
"""
