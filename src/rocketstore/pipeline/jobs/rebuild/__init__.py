"""Queues and index made anew from the CommitLog: ``rocketstore pipeline rebuild``."""
