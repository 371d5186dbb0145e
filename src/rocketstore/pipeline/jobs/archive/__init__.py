"""``rocketstore pipeline archive``: a store's log as a Delta table, from which it can be restored.

`archive_table` says what the tables hold, and reads and writes them; `archive_job` is the job.
"""
