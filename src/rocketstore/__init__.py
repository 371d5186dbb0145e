"""Apache RocketMQ 4.9's message store in Python, byte-compatible on disk."""
