"""Check a store on Spark: the log, its queues, its index and its small files against each other.

Importing this package loads neither PySpark nor pyarrow.
"""
