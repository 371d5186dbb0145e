"""Reading the bytes of a log, healthy or not: one walk from bytes to columns.

``scanner`` accounts for every byte of a CommitLog file and lets a worker begin anywhere in it,
``columns`` holds what a walk finds, ``arrow`` copies it into batches. ``kernels`` is the door to
the compiled functions. Importing this package loads none of these.
"""
