"""Every compiled kernel in plain Python: the oracle of the tests, and the way without Numba.

Law: same name, same arguments, same answer as in ``rocketstore.native``; written to be read
first and to be quick second.
"""
