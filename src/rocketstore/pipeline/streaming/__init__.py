"""``readStream``: `stream_reader` says what a batch is, `live_lines` what is followed."""
