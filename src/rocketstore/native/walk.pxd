cimport cython
from rocketstore.native cimport CallsFor, Column, StopReason, view
from rocketstore.native.Column cimport COUNT as COLUMN_COUNT
from rocketstore.native.view cimport Bytes, Numbers

cdef long long MAGIC_V1, MAGIC_V2, MAGIC_BLANK, _LOW_32, _NAME_TAGS, _NAME_KEYS, _NAME_UNIQUE_KEY
cdef unsigned long long _TOP_BITS, _EVERY_2ND_BYTE, _EVERY_2ND_PAIR, _POWER_OF_8
cdef Bytes _NAME_DELAY, _NAME_EXTRA_QUEUES, _DELAY_TOPIC

cdef Py_ssize_t store_time_position(Bytes data, Py_ssize_t at) noexcept nogil
cdef Py_ssize_t body_position(Bytes data, Py_ssize_t at) noexcept nogil
cdef bint is_zeros(Bytes data, Py_ssize_t start, Py_ssize_t stop) noexcept nogil
cdef int check_tail(Bytes data, Py_ssize_t at, long long file_size) noexcept nogil
@cython.locals(topic_size=cython.longlong, topic_at=cython.Py_ssize_t, verdict=int)
cdef int check_record(
    Bytes data, Py_ssize_t at, long long base, long long file_size, bint check_crc
) noexcept nogil
cdef int check_head(Bytes data, Py_ssize_t at, long long base, long long room) noexcept nogil
@cython.locals(verdict=int)
cpdef long long claimed_size(const unsigned char[::1] buffer, Py_ssize_t position, long long base, long long limit)
@cython.locals(following=int, low=int, high=int, byte=int)
cdef bint is_utf8(Bytes data, Py_ssize_t at, Py_ssize_t end) noexcept nogil
@cython.locals(has_name=cython.bint)
cdef bint are_properties(Bytes data, Py_ssize_t at, Py_ssize_t end) noexcept nogil
cdef bint is_text_whole(
    Bytes data, Py_ssize_t topic_at, Py_ssize_t topic_size, Py_ssize_t end, long long base
) noexcept nogil
cdef (long long, Py_ssize_t) topic_position(Bytes data, Py_ssize_t length_at, long long magic) noexcept nogil
@cython.locals(size=Py_ssize_t, topic_at=Py_ssize_t)
cdef (Py_ssize_t, Py_ssize_t) topic_of(Bytes data, Py_ssize_t at) noexcept nogil
@cython.locals(following=int, low=int, high=int, byte=int, point=cython.longlong)
cdef (long long, Py_ssize_t) hash_other(Bytes data, Py_ssize_t at, Py_ssize_t end, long long value) noexcept nogil
cdef (int, int, int) continuation_bounds(long long lead) noexcept nogil
@cython.locals(byte=int, word=cython.ulonglong, pairs=cython.ulonglong, fours=cython.ulonglong, value=cython.ulonglong)
cdef long long hash_of(Bytes data, Py_ssize_t at, Py_ssize_t size, long long seed) noexcept nogil
cdef bint crc_agrees(Bytes data, Py_ssize_t at, Py_ssize_t body_size, long long crc) noexcept nogil
cdef long long decimal(Bytes data, Py_ssize_t at, Py_ssize_t end) noexcept nogil
cdef void note_property(
    Bytes data, Py_ssize_t name_at, Py_ssize_t name_end, Py_ssize_t end, Numbers row
) noexcept nogil
cdef bint is_delay(Bytes data, Py_ssize_t at, Py_ssize_t size) noexcept nogil
cdef bint names_extra_queues(Bytes data, Py_ssize_t at, Py_ssize_t size) noexcept nogil
@cython.locals(stop=Py_ssize_t, name_end=Py_ssize_t, value_end=Py_ssize_t)
cdef bint is_plain_block(Bytes data, Py_ssize_t at, Py_ssize_t size) noexcept nogil
@cython.locals(name_end=Py_ssize_t)
cdef (Py_ssize_t, Py_ssize_t) property_at(Bytes data, Py_ssize_t at, Py_ssize_t end) noexcept nogil
@cython.locals(name_end=Py_ssize_t, value_end=Py_ssize_t)
cdef void read_properties(Bytes data, Py_ssize_t at, Py_ssize_t end, Numbers row) noexcept nogil
cdef bint has_offset(long long sys_flag) noexcept nogil
@cython.locals(found=cython.longlong, is_late=cython.bint)
cdef long long calls_for(Bytes data, Numbers row) noexcept nogil
@cython.locals(topic_size=cython.longlong, topic_at=cython.Py_ssize_t)
cdef long long read_record(Bytes data, Py_ssize_t at, long long base, Numbers row) noexcept nogil
cdef void prefetch_following(Bytes data, Py_ssize_t at, Py_ssize_t size) noexcept nogil
@cython.locals(verdict=int, size=cython.longlong, count=cython.Py_ssize_t)
cdef (Py_ssize_t, Py_ssize_t, int) walk_rows(
    Bytes data, Py_ssize_t at, Py_ssize_t end, long long base, long long file_size, bint check_crc, Numbers rows,
    Py_ssize_t limit
) noexcept nogil
@cython.locals(at=Py_ssize_t, end=Py_ssize_t, limit=Py_ssize_t, count=Py_ssize_t, verdict=int)
cpdef walk(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t stop, long long base, long long file_size,
    bint check_crc, long long[:, ::1] cols
)
