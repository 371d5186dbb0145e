"""The kinds of topics: batch topics and memory topics, as `storage.queues.topic_kinds` wants them.

`BatchTopics` has queues of 5.x, one record and one entry for many messages; `MemoryTopics` keeps
messages in this process and in no file. `kinds_of` and `kinds_of_reader` say which of them a store
has, and `storage.topics_of_kind` lets a program make a topic of one::

    >>> with MessageStore.open("store", StoreConfig.small(memory_topic_enable=True)) as store:
    ...     store.memory_topics.create("ticks")
    ...     store.memory_topics.names, store.batch_topics.names
    (frozenset({'ticks'}), frozenset())

Law: what is here is asked through `TopicKind` alone; nothing else in storage names a kind.
"""
