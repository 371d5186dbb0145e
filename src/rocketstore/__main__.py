"""``python -m rocketstore``: the command line."""

from rocketstore.cli.application import main

main()
