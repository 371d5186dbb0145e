"""The sink, ``df.write`` and ``df.writeStream``: tasks stage rows, and the driver commits them.

`spark_sink` is what Spark calls, `sink_writer` what a task does, and `sink_commit` appends a batch
once: ``df.write.format("rocketstore").mode("append").save("data/store")``.
"""
