cimport cython
from rocketstore.native.view cimport (
    BATCH_COLUMN_COUNT,     Bytes, Numbers, batch_row_at, bytes_of, copy_bytes, crc_of, find_byte, load_i16, load_i32, load_i64, load_u8, rows_of,
    store_i16, store_i32, store_i64, store_u8
)
from rocketstore.native.walk cimport hold_names

cdef long long _MAGIC, _DELA, _Y_END, _INNER_MU, _NO_ROOM

cdef enum:
    _FLAG = 0
    _SYS_FLAG = 1
    _BORN = 2
    _HOST_AT = 3
    _RECONSUME = 4
    _PREPARED = 5
    _BODY_AT = 6
    _BODY_SIZE = 7
    _PROPERTIES_AT = 8
    _PROPERTIES_SIZE = 9
    _RECORD_SIZE = 10
    _MESSAGE_FIXED_SIZE = 22
    _NO_TIMESTAMP = -1
    _BAD_TABLE = -1
    _TOO_LONG = -2
    _SPECIAL = -3
    _EMPTY = -4
    _BAD_PROPERTIES = -5
    _CUT_OFF = -100

cdef int host_size_of(long long sys_flag, long long bit) noexcept nogil
cdef bint is_inside(long long at, long long size, long long end) noexcept nogil
cdef bint may_be_special(Bytes source, Py_ssize_t at, Py_ssize_t size) noexcept nogil

cdef class Batch:
    cdef Bytes source, target
    cdef Numbers table
    cdef long long most, count, size, is_checked, sys_flag, born, host_at, reconsume_times
    cdef long long store_host_at, store_host_size, topic_at, topic_size, more_at, more_size
    cdef long long queue_id, queue_offset, timestamp, base
    cdef long long joint_size(self, long long at, long long size) noexcept nogil
    cdef bint is_possible(self) noexcept nogil
    cdef long long parse(self) noexcept nogil
    cdef long long measure(self) noexcept nogil
    cdef long long write_head(self, Numbers row, long long number, long long at) noexcept nogil
    cdef void write_record(self, Numbers row, long long number, long long at) noexcept nogil
    cdef long long write(self, long long position) noexcept nogil

@cython.locals(batch=Batch)
cpdef write_batch(
    const unsigned char[::1] source, long long[:, ::1] table, tuple plan, tuple numbers,
    unsigned char[::1] target, long long position
)
