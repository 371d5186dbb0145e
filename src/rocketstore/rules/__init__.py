"""Rules that a writer of a store and its verification share.

Topics and what their names mean, further queues, half messages and other waiting messages, limits
of a put, which entries and items a record calls for, and which queue offsets can be true. Where a
log ends and what an earlier one left (`log_rules`, `leftovers`, `bridges`); which files are usable,
and every kind of fault that is reported, with its severity and remedy (`findings`)::

    >>> from rocketstore.rules.topics import is_reserved
    >>> is_reserved("orders"), is_reserved("%RETRY%billing")
    (False, True)

Law: nothing here knows a file, a thread or Spark; values in, values out.
"""
