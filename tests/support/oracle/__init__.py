"""The bulk functions of ``rocketstore.native`` once more, in the plainest Python: an oracle.

Law: same name, same arguments, same answer as in ``rocketstore.native``; written to be read
first and to be quick second.
"""
