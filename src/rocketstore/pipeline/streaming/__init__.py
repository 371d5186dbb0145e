"""``readStream``: follow a store that is being written, every message in one batch.

Read `following` first (what a batch is), then `live_log` or `live_queue` (what is followed).
"""
