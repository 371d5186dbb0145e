"""``readStream``: follow a store that is being written, every message in one batch.

Read `stream_reader` first (what a batch is), then `live_lines` (what is followed).
"""
