"""The ``rocketstore`` command."""
