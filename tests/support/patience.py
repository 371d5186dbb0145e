"""How long tests wait for what should happen.

No test that succeeds needs so long, however loaded the machine is: where what is waited for cannot
come any more, because its process died, the wait ends at once.
"""

from typing import Final

PATIENCE_S: Final = 240.0
"""For what other threads and processes do in a moment where nothing else runs."""

START_S: Final = 600.0
"""For what starts JVMs, or builds something."""
