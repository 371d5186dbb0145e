cimport cython
from libc.stdint cimport int64_t
from rocketstore.native cimport StopReason, view
from rocketstore.native.columns cimport next_key
from rocketstore.native.decode cimport BorrowedBytes, LogAtHand, LogCursor, borrowed, message_of
from rocketstore.native.index cimport first_item, follow_chain, has_room, key_hash_of, slot_start
from rocketstore.native.view cimport Bytes, Numbers
from rocketstore.native.walk cimport body_position, check_record, crc_agrees, hash_of, read_properties, store_time_position, topic_of

cdef enum:
    _ROOM = 32
    _FEW_STEPS = 64
    _ALL_STEPS = 0x7FFFFFFF
    _AHEAD = 4
    _AHEAD_BYTES = 1280

cdef long long _FIRST, _LAST, _MOST_MESSAGES

@cython.locals(value=cython.longlong)
cdef int64_t in_64_bits(object number, object rounded) except? -1

@cython.final
cdef class KeySearch:
    cdef LogAtHand log
    cdef object index, end
    cdef bint is_mapped
    cdef long long memory_span, slot_limit, item_limit
    @cython.locals(one=Lookup, files=tuple, is_begun=cython.bint, first=cython.longlong, last=cython.longlong, most=cython.longlong)
    cpdef list find(self, object topic, object key, object begin_ms, object end_ms, object max_messages)

@cython.final
@cython.no_gc
cdef class Lookup(LogCursor):
    cdef Bytes topic, key, items
    cdef BorrowedBytes borrowed_items
    cdef list found
    cdef long long key_hash, begin_ms, end_ms, in_disk_below, lowest, most
    cdef long long offsets[33]
    @cython.locals(key_hash=cython.longlong)
    cdef void ask(self, object topic, object key, long long begin_ms, long long end_ms, long long most) except *
    cdef void begin_search(self, KeySearch search) except *
    cdef bint aim(self, object mapping, long long slot_limit, long long item_limit) except -1
    @cython.locals(items=Bytes, number=cython.longlong, n=int, is_old=cython.bint)
    cdef bint search(self, long long slot_limit, long long item_limit) except -1
    cdef long long follow(self, long long slot_limit, long long number, long long steps) noexcept nogil
    cdef bint look_at(self, long long offset) except -1
    cdef bint is_known(self, long long offset) except -1
    cdef Py_ssize_t hit_at(self, long long offset) except -2
    cdef bint is_hit(self, Py_ssize_t at) noexcept nogil
    @cython.locals(row="long long[28]", size=Py_ssize_t)
    cdef bint carries(self, Py_ssize_t at, Py_ssize_t end) noexcept nogil
