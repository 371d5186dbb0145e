"""``rocketstore pipeline archive``: a store's log as a Delta table, to be restored from."""
