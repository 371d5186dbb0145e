"""Check log, queues, index and small files of a store against each other, on Spark."""
