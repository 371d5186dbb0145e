cimport cython
from rocketstore.native cimport row as Column
from rocketstore.native.decode cimport Lent, LogAtHand, Window, lent, message_of
from rocketstore.native.index cimport follow_chain, positive_hash
from rocketstore.native.java_hash cimport hash_of
from rocketstore.native.row cimport COLUMN_COUNT, StopReason
from rocketstore.native.view cimport (
    Bytes, Numbers, equal_bytes, find_byte, load_i32, load_i64, load_u32, utf8_inside
)
from rocketstore.native.walk cimport check_record, crc_agrees, read_properties, topic_of, v6_extra_bytes

cdef enum:
    _HEADER_SIZE = 40
    _ROOM = 32
    _FEW_STEPS = 64
    _ALL_STEPS = 0x7FFFFFFF

@cython.final
cdef class Lookup(Window):
    cdef str held_topic, held_key
    cdef Bytes topic, key
    cdef list found
    cdef long long key_hash, begin_ms, end_ms, in_disk_below, lowest
    cdef object most
    cdef long long offsets[33]
    cdef long long row[28]
    cpdef list messages(self)
    @cython.locals(one=Lent, items=Bytes, number=cython.longlong, n=int, is_old=cython.bint)
    cpdef bint search(self, object index_file, long long slot_limit, long long item_limit) except *
    cdef long long follow(
        self, Bytes items, long long slot_limit, long long item_limit, long long number, long long steps
    ) noexcept nogil
    @cython.locals(at=Py_ssize_t)
    cpdef bint look_at(self, long long offset) except *
    cdef bint is_known(self, long long offset) except *
    @cython.locals(at=Py_ssize_t, is_hit=cython.bint)
    cdef Py_ssize_t hit_at(self, long long offset) except -2
    @cython.locals(data=Bytes, topic_at=Py_ssize_t, topic_size=Py_ssize_t, born_extra=int, store_extra=int, stored=cython.longlong, body_at=Py_ssize_t)
    cdef bint is_hit(self, Py_ssize_t at) noexcept nogil
    @cython.locals(data=Bytes, row=Numbers, size=Py_ssize_t, stop=Py_ssize_t)
    cdef bint carries(self, Py_ssize_t at, Py_ssize_t end) noexcept nogil
