"""Everything that reads messages, over any store."""
