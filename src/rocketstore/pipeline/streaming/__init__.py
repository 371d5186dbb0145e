"""``spark.readStream.format("rocketstore")``: a store that is being written, batch after batch.

What a batch is, is decided without Spark: `log_stream` and `queue_stream` turn the offset behind
the last batch into the one behind the next, and two offsets into tasks. `reader` hands that to
Spark.
"""
