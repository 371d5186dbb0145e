cimport cython
from rocketstore.native cimport dispatch_numbers as IndexColumn
from rocketstore.native cimport dispatch_numbers as QueueColumn
from rocketstore.native cimport dispatch_numbers as State
from rocketstore.native cimport dispatch_stops as DispatchStop
from rocketstore.native cimport row as Column
from rocketstore.native.columns cimport find_queue, has_extra_queues, key_hash_of
from rocketstore.native.dispatch_numbers cimport Step
from rocketstore.native.index cimport put_item
from rocketstore.native.row cimport StopReason
from rocketstore.native.view cimport (
    Bytes, Numbers, bytes_mapped, bytes_of, find_byte, load_i32, load_i64, numbers_of, prefetch, publish,
    queue_at, row_at, rows_of, store_i32, store_i64
)
from rocketstore.native.walk cimport walk_on

cdef enum:
    _ENTRY_SIZE = 20
    _FILLER_SIZE = 0x7FFFFFFF

cdef long long _MAX_QUEUE_OFFSET

cdef class Pass:
    cdef Bytes data, topics, index_file
    cdef Numbers rows, slots, queues, index, delays_ms, state
    cdef Py_ssize_t slot_count, delay_count, most
    cdef long long tags_code(self, Numbers row, bint is_delay) noexcept nogil
    @cython.locals(is_filler=cython.bint)
    cdef int enter(self, Numbers row) noexcept nogil
    cdef bint put_key(self, Numbers row, Py_ssize_t at, Py_ssize_t size, int ordinal) noexcept nogil
    @cython.locals(done=cython.longlong, ordinal=int)
    cdef int put_keys(self, Numbers row) noexcept nogil
    cdef void prefetch_text(self, Py_ssize_t number) noexcept nogil
    @cython.locals(code=int)
    cdef int dispatch(self) noexcept nogil
    @cython.locals(count=Py_ssize_t, walked=Py_ssize_t, reason=int, code=int)
    cdef int follow(self, Py_ssize_t stop, long long base, long long file_size) noexcept nogil
@cython.locals(run=Pass)
cpdef follow(
    const unsigned char[::1] buffer, Py_ssize_t stop, long long base, long long file_size, long long[:, ::1] cols,
    long long[:, ::1] slots, const unsigned char[::1] topics, long long[:, ::1] queues,
    unsigned char[::1] index_file, long long[::1] index_state, long long[::1] delays_ms, long long[::1] state
)
