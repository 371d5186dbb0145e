"""Queues and index made again from the CommitLog: ``rocketstore pipeline rebuild``."""
