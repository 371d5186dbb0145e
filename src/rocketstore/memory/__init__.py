"""Memory topics: topics whose messages live in the process's memory and in no file.

`memory_store` keeps and evicts the messages, `memory_topics` says which topics these are and lets
the calls of a store that name one go there. Decision: docs/decisions/0024-memory-topics.md.
"""

from rocketstore.memory.memory_topics import MemoryTopics

__all__ = ["MemoryTopics"]
