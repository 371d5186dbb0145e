"""The sink, ``df.write`` and ``df.writeStream``: tasks stage rows, and the driver commits them."""
