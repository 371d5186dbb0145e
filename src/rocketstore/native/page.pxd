cimport cython
from rocketstore.native.row cimport StopReason
from rocketstore.native.view cimport (
    Bytes, Numbers, bytes_of, copy_bytes, find_byte, load_i32, load_i64, load_u8, load_u32, numbers_of, prefetch
)
from rocketstore.native.walk cimport check_record, topic_place, v6_extra_bytes

cdef long long _NAME_TAGS, _LOW_32, _MAX_EXT_ADDRESS

cdef enum:
    _ENTRY_SIZE = 20
    _FILLER_SIZE = 0x7FFFFFFF
    _FIXED_SIZE = 91
    _AHEAD = 8
    _OTHERS = 3
    _TAKE = 4

cdef enum GatherStop:
    END = 0
    FULL = 1
    ELSEWHERE = 2
    DOUBTFUL = 3
    NO_ROOM = 4

cdef enum GatherView:
    NONE = 0
    LOST = 1
    UNWANTED = 2

cdef enum:
    _QUEUE_ID = 0
    _TOPIC_SIZE = 1
    _MEMORY_BYTES = 2
    _MEMORY_COUNT = 3
    _DISK_BYTES = 4
    _DISK_COUNT = 5
    _TAG_COUNT = 6
    _TAGS = 7

cdef bint texts_equal(Bytes first, Py_ssize_t at, Bytes second, Py_ssize_t other, Py_ssize_t size) noexcept nogil
@cython.locals(born_extra=int, store_extra=int, size=Py_ssize_t, topic_at=Py_ssize_t)
cdef (Py_ssize_t, Py_ssize_t) topic_of(Bytes log, Py_ssize_t at) noexcept nogil

cdef class Page:
    cdef Bytes log, entries, names, out
    cdef Numbers plan
    cdef long long base, log_min, in_disk_below, entry, count, written, skipped, readable
    cdef int view
    cdef void prefetch_record(self, Py_ssize_t entry) noexcept nogil
    cdef bint may_match(self, long long code) noexcept nogil
    cdef bint tags_match(self, Py_ssize_t at, Py_ssize_t stop) noexcept nogil
    cdef bint is_full(self, long long size, bint is_in_disk) noexcept nogil
    @cython.locals(topic_at=Py_ssize_t, topic_size=Py_ssize_t)
    cdef int verdict(self, Py_ssize_t at, long long size) noexcept nogil
    @cython.locals(found=int)
    cdef int gather(self, long long first, long long stop, long long max_messages) noexcept nogil

@cython.locals(page=Page)
cpdef gather(
    const unsigned char[::1] log, long long base, long long readable, long long log_min,
    const unsigned char[::1] entries, long long first, long long stop, long long[::1] plan,
    const unsigned char[::1] names, long long max_messages, long long in_disk_below,
    unsigned char[::1] out, long long count, long long written
)
