cimport cython
from rocketstore.native cimport CallsFor, Column, PutEntry, QueueColumn, StopReason, view
from rocketstore.native.columns cimport entry_code, find_queue, next_key
from rocketstore.native.index cimport key_hash_of
from rocketstore.native.index cimport put_item
from rocketstore.native.view cimport Bytes, Numbers
from rocketstore.native.walk cimport walk_rows

cdef enum:
    _ENTRY_SIZE = 20
    _FILLER_SIZE = 0x7FFFFFFF
    _INNER_BATCH = 0x80

cdef long long _MAX_QUEUE_OFFSET

cdef bint is_in_file(Numbers queue, long long at) noexcept nogil
@cython.locals(is_filler=cython.bint)
cdef int put_entry(Numbers queue, long long at, long long physical, long long size, long long code, bint overwrite) noexcept nogil
cpdef int put_mapped(
    long long[::1] row, long long at, long long physical, long long size, long long code, bint overwrite
) noexcept

cdef class RowDispatch:
    cdef public long long last_store_timestamp_ms, now_ms
    cdef public Py_ssize_t cursor
    cdef object decisions, table, index, delays_kept, tables_kept
    cdef Bytes data, topics, index_file
    cdef Numbers rows, slots, queues, last_indexed, delays_ms
    cdef public Py_ssize_t count
    cdef Py_ssize_t slot_count, delay_count
    cdef long long slot_limit, item_limit
    cdef bint is_indexed
    cdef public bint is_guest
    cpdef dispatch(self, const unsigned char[::1] buffer, long long[:, ::1] cols)
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, limit=Py_ssize_t, count=Py_ssize_t, batch=int, verdict=int)
    cpdef dispatch_file(
        self, const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t stop, long long base, long long file_size,
        bint check_crc, long long[:, ::1] cols, int batches
    )
    cdef look_up_tables(self)
    cdef let_go(self)
    cdef int dispatch_rows(self) except -1 nogil
    cdef decider(self)
    cdef void prefetch_text(self, Py_ssize_t number) noexcept nogil
    @cython.locals(gives_way=cython.bint, is_entered=cython.bint, code=cython.longlong, ahead_ms=cython.longlong)
    cdef int enter(self, Numbers row) except -1 nogil
    @cython.locals(is_answered=cython.bint, is_next=cython.bint, is_possible=cython.bint, number=cython.longlong)
    cdef long long ready_queue(self, Numbers row) except -2 nogil
    @cython.locals(done=cython.longlong, ordinal=int, at=Py_ssize_t, end=Py_ssize_t)
    cdef int put_keys(self, Numbers row) except -1 nogil
    cdef int put_key(self, Numbers row, Py_ssize_t at, Py_ssize_t size, int ordinal) except -1 nogil
    cdef int roll_index(self) except -1 nogil
