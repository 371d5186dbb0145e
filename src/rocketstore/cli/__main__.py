"""``python -m rocketstore.cli``."""

from rocketstore.cli import main

main()
