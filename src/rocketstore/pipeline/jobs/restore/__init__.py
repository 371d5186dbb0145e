"""The restore: a store from an archive, byte for byte, or a selection of its messages.

``rocketstore pipeline restore`` on the command line, one call in Python::

    import rocketstore.pipeline

    spark = rocketstore.pipeline.session()
    rocketstore.pipeline.restore(spark, "data/archive", "data/again")
    rocketstore.pipeline.restore(spark, "data/archive", "data/orders", topics=["orders"])

`restore_job` is the call and plans the CommitLog files; `restore_task` writes one file each, from
the rows of the archive (`pipeline.jobs.archive`). Queues and index are then made by
`pipeline.jobs.rebuild`.

Law: each record is compared with its CRC. Bytes that the archive lacks are an error, unless the
caller allows gaps. The store appears under its name as a whole, and nothing is overwritten.
Page: docs/guide/spark-archive.md, tables docs/reference/archive.md.
"""
