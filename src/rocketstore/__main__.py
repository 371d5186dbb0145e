"""``python -m rocketstore``: the command line."""

from rocketstore.cli import main

main()
