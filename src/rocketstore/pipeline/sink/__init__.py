"""The sink: ``df.write`` and ``df.writeStream`` into a store, each batch exactly once.

Tasks encode rows to whole records and stage them in files (`rows`, `staging`); the driver gives
them their offsets and appends them (`placement`, `driver_commit`), so that whatever is killed
leaves a batch that is there once or not at all (`intent`). See docs/guide/spark-sink.md.
"""
