"""The parts of Cython that the sources of this package use, where it is not installed."""

from contextlib import nullcontext

compiled = False
nogil = gil = nullcontext()
