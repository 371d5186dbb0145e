"""What the sources of this package use of Cython, where it is not installed."""

from contextlib import nullcontext

compiled = False
nogil = gil = nullcontext()
