"""Topics of 5.x whose queues hold batches: one record and one entry for many messages.

Messages of a batch are put as one record and read one by one. See docs/how-it-works/batch-queues.md
and docs/decisions/0029-batch-queues.md.
"""
