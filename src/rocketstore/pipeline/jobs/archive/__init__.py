"""``rocketstore pipeline archive``: a store's log as a Delta table, from which it can be restored.

`archive_table` says what the tables hold, `archive_task` runs on workers, `archive_job` is the
whole.
"""
