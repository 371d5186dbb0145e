# The columns of a row and the reasons of a stop, as ``rocketstore.native.row`` numbers them (tests/unit/scan/test_kernels.py compares them).

cdef enum:
    PHYSICAL_OFFSET = 0
    SIZE = 1
    QUEUE_ID = 2
    QUEUE_OFFSET = 3
    FLAG = 4
    SYS_FLAG = 5
    BORN_TIMESTAMP = 6
    STORE_TIMESTAMP = 7
    RECONSUME_TIMES = 8
    PREPARED_OFFSET = 9
    BODY_CRC = 10
    BODY_AT = 11
    BODY_SIZE = 12
    TOPIC_AT = 13
    TOPIC_SIZE = 14
    PROPERTIES_AT = 15
    PROPERTIES_SIZE = 16
    TAGS_AT = 17
    TAGS_SIZE = 18
    TAGS_CODE = 19
    KEYS_AT = 20
    KEYS_SIZE = 21
    UNIQUE_KEY_AT = 22
    UNIQUE_KEY_SIZE = 23
    TOPIC_HASH = 24
    BORN_HOST_AT = 25
    STORE_HOST_AT = 26
    DELAY_LEVEL = 27
    COLUMN_COUNT = 28

cdef enum StopReason:
    END = 0
    BLANK = 1
    UNWRITTEN = 2
    BAD_LENGTH = 3
    BAD_MAGIC = 4
    BAD_ADDRESS = 5
    BAD_FIELDS = 6
    BAD_CRC = 7
    TRUNCATED = 8
