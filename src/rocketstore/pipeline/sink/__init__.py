"""The sink: ``df.write`` and ``df.writeStream`` into a store, each batch exactly once.

Tasks check rows and stage them in files (`sink_rows`, `sink_staging`); the driver puts them into
the store (`sink_commit`), so that whatever is killed leaves a batch that is there once or not at
all. What Spark calls, and what it was asked, is in `sink_writer`. See docs/guide/spark-sink.md.
"""
