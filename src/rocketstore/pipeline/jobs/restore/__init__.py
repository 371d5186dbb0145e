"""``rocketstore pipeline restore``: a store from an archive, whole or a selection.

`job` is the whole; `plan` says what goes where, `task` runs on workers, `encode` turns rows into
records, `driver_commit` makes the store appear.
"""
