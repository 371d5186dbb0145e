"""How commands end: the codes that scripts ask for. An error carries its own (`errors`)."""

from typing import Final

FINE: Final = 0
FOUND: Final = 1
"""Something was found or changed, and no damage is left."""
USAGE: Final = 2
UNREACHABLE: Final = 3
"""The operating system refused: permission, a full or failing disk. Nothing is known about the
store."""
DAMAGED: Final = 4
"""Damage is in the store now."""
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""
