"""``python -m rocketstore.cli``."""

from rocketstore.cli.application import main

main()
