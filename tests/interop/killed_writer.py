"""Put sample messages until killed; one line on standard output for each that is acknowledged.

Usage: killed_writer.py STORE ASYNC_FLUSH|SYNC_FLUSH [true, for a transient store pool]
"""

import itertools
import os
import sys

from rocketstore import MessageStore
from support.both_sides import queue_of, sample_messages, small_config


def main() -> None:
    path, flush, *pool = sys.argv[1:]
    config = small_config(flushDiskType=flush, transientStorePoolEnable=bool(pool))
    with MessageStore.open(path, config) as store:
        for first in itertools.count(0, 3):
            for number, message in enumerate(sample_messages(3, first=first)):
                assert store.put(message, queue_id=queue_of(number)).status.name == "PUT_OK"
                os.write(1, b"%d\n" % (first + number))


main()
