"""How a store is watched: the check of its old files, and its numbers for Prometheus."""
