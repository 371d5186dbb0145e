"""Report what a store holds, as one page that needs nothing else, and as tables.

Tasks count (``task``, ``tally``) in groups (``groups``, ``buckets``); the driver puts them together
(``counts``), names them (``tables``, ``summary``), draws them (``page``, ``traffic``, ``health``,
``charts``) and writes them (``output``). Importing this package loads neither PySpark nor pyarrow.
"""
