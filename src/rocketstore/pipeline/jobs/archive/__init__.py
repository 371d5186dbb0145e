"""``rocketstore pipeline archive``: a store's log as a Delta table, from which it can be restored.

`archive_table` says what the tables hold and is all that readers need; `archive_plan` says what is
read, `archive_write` and `archive_files` run on workers, `archive_job` is the whole.
"""
