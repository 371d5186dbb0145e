"""Replication: a slave follows the CommitLog of a master, byte for byte."""
