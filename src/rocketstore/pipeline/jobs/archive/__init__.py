"""``rocketstore pipeline archive``: a store's log as a Delta table, to be restored from.

`archive_job` brings in what is new, `archive_table` says what rows mean, `archive_place` knows an
archive from other tables: ``archive(spark, "data/store", "data/archive")``.
"""
