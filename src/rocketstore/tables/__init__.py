"""The JSON tables of a broker in ``config/``: each has one owner, which reads and writes it.

Law: what a table says that its owner does not know, of a newer broker say, stays there.
"""
