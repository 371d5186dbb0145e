cdef enum:  # DispatchStop of ``rocketstore.native.dispatch_state``
    DONE = 0
    UNKNOWN_QUEUE = 1
    QUEUE_ROLL = 2
    QUEUE_GAP = 3
    QUEUE_CONFLICT = 4
    INDEX_FULL = 5
    MULTI_DISPATCH = 6
    BATCH = 7
    WALK_ENDED = 8
