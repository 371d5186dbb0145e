"""``rocketstore pipeline restore``: a store from an archive, whole or a selection.

`restore_job` is the whole; `restore_plan` says what goes where, `restore_task` runs on workers,
`record_bytes` turns rows into records.
"""
