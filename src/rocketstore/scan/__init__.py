"""Reading bytes that someone else wrote, healthy or not: one walk from bytes to columns.

``scanner`` accounts for every byte of a CommitLog file, ``split`` lets any worker start anywhere,
``columns`` holds what a walk finds, ``arrow`` copies it into batches. ``kernels`` is the door to
the compiled functions. Importing this package loads none of them.
"""
