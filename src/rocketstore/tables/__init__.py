"""The JSON tables of a broker in ``config/``: each has one owner, which reads and writes it.

Law: a field that the owner does not know, for example of a newer broker, stays in the table.
"""
