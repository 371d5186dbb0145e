"""``readStream``: a store, or queues of it, as a stream of batches while others write to it.

A stream is asked for in Spark's way::

    spark.readStream.format("rocketstore").option("subscribe", "orders").load("data/store")

`stream_options` are what the query asked for, and the offsets that Spark keeps in its checkpoint.
`live_log` finds where a log ends, and whether a place in it still holds; `live_queues` does so
where only some queues are wanted. `stream_reader` is the reader that Spark calls: it plans a batch
between two places of each log, and its tasks read the rows. `queue_evidence` compares these with
the queues' entries.

Law: a stream only stands after a record whose bytes were checked. No loss is silent: the option
``failOnDataLoss`` decides between an error and a warning that says what is missing. No lock is
taken and nothing is written, so the writer is not disturbed.
Page: docs/guide/spark-streaming.md, decisions 0007 and 0045.
"""
