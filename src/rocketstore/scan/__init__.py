"""Reading bytes that someone else wrote, healthy or not: one walk from bytes to columns.

``scanner`` walks a CommitLog file and accounts for every byte, ``resync`` finds the next record
behind damage, ``split`` lets any worker start anywhere, ``columns`` holds what a walk finds.
``kernels`` is the door to the compiled functions. Importing this package loads no compiler.
"""
