"""``readStream``: a store, or queues of it, as a stream of batches while others write to it.

A stream is asked for in Spark's way::

    spark.readStream.format("rocketstore").option("subscribe", "orders").load("data/store")

`stream_options` are what the query asked for, and the offsets that Spark keeps in its checkpoint.
`live_feeds` finds where a log or a queue ends, and whether a place in it still holds.
`stream_reader` is the reader that Spark calls: it plans a batch between two places of each log or
queue, and its tasks read the rows.

Law: a stream only stands after a record whose bytes were checked. No loss is silent: the option
``failOnDataLoss`` decides between an error and a warning that says what is missing. No lock is
taken and nothing is written, so the writer is not disturbed.
Page: docs/guide/spark-streaming.md, decision docs/decisions/0007-stream-offsets.md.
"""
