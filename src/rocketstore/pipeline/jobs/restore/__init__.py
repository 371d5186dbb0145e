"""``rocketstore pipeline restore``: a store from an archive, whole or a selection.

`restore_task` runs on workers, `restore_job` is the whole.
"""
