"""Transactions: half messages, which no consumer gets before their producer commits them.

A half message lies in a topic of its own. A commit puts the final message where it belongs, and
then an op message that says that the half one has ended; a rollback puts the op message alone.
Nothing is ever changed in place. Page: docs/how-it-works/transactions.md.
"""
