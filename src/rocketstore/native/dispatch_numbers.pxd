# The numbers of ``rocketstore.native.dispatch_state`` (tests/unit/scan/test_kernels.py compares them).

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

cdef enum:  # IndexColumn
    ENABLED = 0
    SLOT_LIMIT = 1
    ITEM_LIMIT = 2
    ITEMS_AT_END = 3

cdef enum:  # State
    WALKED = 0
    CURSOR = 1
    FILLED = 2
    STEP = 3
    WALK_STOP = 4
    CHECK_CRC = 5
    FORCE = 6
    MULTI_DISPATCH = 7
    STOP_AFTER_BATCH = 8
    RECORDS = 9
    ENTRIES_WRITTEN = 10
    ENTRIES_REPEATED = 11
    ENTRIES_REFUSED = 12
    WITHOUT_ENTRY = 13
    INDEX_ITEMS = 14
    LAST_STORE_TIMESTAMP = 15
    LAST_PHYSICAL_STOP = 16

cdef enum Step:
    NEW = 0
    ENTERED = 1
    MULTI_DISPATCHED = 2
