"""The sink: ``df.write`` and ``df.writeStream`` into a store, each batch exactly once.

Spark calls `sink_writer`; tasks stage rows (`sink_rows`), the driver puts them (`sink_commit`).
"""
