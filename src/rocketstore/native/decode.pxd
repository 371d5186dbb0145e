cimport cython
from rocketstore.native cimport StopReason, view
from rocketstore.native.view cimport Bytes, Py_buffer
from rocketstore.native.walk cimport MAGIC_V1, MAGIC_V2, body_position, check_record, store_time_position, topic_of

cdef enum:
    _FIXED_SIZE = 91
    _START_SIZE = 8

@cython.final
@cython.no_gc
cdef class BorrowedBytes:
    cdef Py_buffer export
    cdef Bytes data
    cdef void take(self, object buffer) except *

@cython.locals(one=BorrowedBytes)
cdef BorrowedBytes borrowed(object buffer)

@cython.final
cdef class LatestText:
    cdef object decode
    cdef tuple known

cdef LatestText _latest_topic, _latest_born_host, _latest_store_host

@cython.locals(source=bytes, text=str, known=Bytes)
cdef str latest_text(LatestText latest, Bytes data, Py_ssize_t at, Py_ssize_t size)
@cython.locals(topic_at=Py_ssize_t, topic_size=Py_ssize_t)
cdef object message_of(Bytes data, Py_ssize_t at)
@cython.locals(one=BorrowedBytes)
cpdef decode(object buffer, Py_ssize_t position, long long base, bint check_crc)

@cython.final
cdef class LogAtHand:
    cdef object source
    cdef tuple recent

@cython.no_gc
cdef class LogCursor:
    cdef LogAtHand log
    cdef object buffer
    cdef BorrowedBytes borrowed
    cdef Bytes data
    cdef long long base, readable
    @cython.locals(recent=tuple)
    cdef void begin(self, LogAtHand log) except *
    @cython.locals(one=BorrowedBytes)
    cdef void take(self, object buffer, long long base, long long readable) except *
    cdef bint holds(self, long long offset, long long size) noexcept nogil
    cdef bint move(self, long long offset, long long size) except -1
    cdef void prefetch_record(self, long long offset, long long size) noexcept nogil
    cdef Py_ssize_t reach(self, long long offset, long long size) except -2
    cdef Py_ssize_t seek(self, long long offset, long long size, bint check_crc) except -2

@cython.locals(cursor=LogCursor)
cpdef message_at(LogAtHand log, long long offset, long long size)
@cython.locals(cursor=LogCursor)
cpdef size_at(LogAtHand log, long long offset)
@cython.locals(cursor=LogCursor)
cpdef store_time_at(LogAtHand log, long long offset, long long size)
