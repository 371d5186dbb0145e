"""The rules by which a store is judged: its log, queues, index and small files against each other.

``rocketstore store verify`` applies them on one machine, ``rocketstore pipeline audit`` as tasks of
Spark. Law: nothing here knows a file, a thread or Spark; rules take columns and return values.
"""
