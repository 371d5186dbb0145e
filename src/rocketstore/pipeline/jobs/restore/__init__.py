"""``rocketstore pipeline restore``: a store from an archive, whole or a selection."""
