"""``readStream``: `stream_reader` says what a batch is, `live_feeds` what is followed."""
