"""``rocketstore pipeline archive``: a store's log as Parquet files, from which it can be restored.

`job` is the whole; `plan` says what is read, `task` runs on workers, `commit` makes a run count,
`manifest` and `layout` are what readers of an archive need.
"""
