# The numbers of ``rocketstore.native.row`` (tests/unit/scan/test_kernels.py compares them).

cdef enum:  # SlotColumn
    TOPIC_HASH = 0
    QUEUE_ID = 1
    TOPIC_AT = 2
    TOPIC_SIZE = 3
    QUEUE = 4
    SLOT_COLUMN_COUNT = 5

cdef enum:  # QueueColumn
    ADDRESS = 0
    FILE_START = 1
    FILE_STOP = 2
    NEXT = 3
    MAX_PHYSICAL = 4
    IS_DELAY = 5
    CHANGES = 6
    QUEUE_COLUMN_COUNT = 7
