cimport cython
from rocketstore.native cimport view
from rocketstore.native.touch cimport fault_in
from rocketstore.native.view cimport Bytes, Numbers
from rocketstore.native.walk cimport hash_of, is_zeros

cdef long long _LOW_32, _TOP_BIT_32, _MAX_BEGIN_MS

cdef enum:
    _HEADER_SIZE = 40
    _SLOT_SIZE = 4
    _ITEM_SIZE = 20
    _SECTOR = 512
    _MOST_NUMBERS = 0x7FFFFFFF

cdef long long positive_hash(long long value) noexcept nogil
cdef long long key_hash_of(Bytes data, Py_ssize_t at, Py_ssize_t size, long long topic_hash) noexcept nogil
cdef Py_ssize_t slot_start(long long slot_limit, long long key_hash) noexcept nogil
cdef bint put_item(
    Bytes index_file, long long slot_limit, long long item_limit, long long key_hash, long long physical_offset,
    long long store_timestamp
) noexcept nogil
cdef bint has_room(Bytes index_file, long long slot_limit, long long item_limit) noexcept nogil
cpdef put_items(
    unsigned char[::1] index_file, long long slot_limit, long long item_limit, long long[::1] key_hashes,
    long long[::1] physical_offsets, long long[::1] store_timestamps
)
cdef long long first_item(Bytes data, long long slot_limit, long long item_limit, long long key_hash) noexcept nogil
cdef long long follow_chain(
    Bytes data, long long slot_limit, long long key_hash, long long begin_ms, long long end_ms,
    long long number, Numbers offsets, Py_ssize_t room, long long steps
) noexcept nogil
cdef bint is_torn(Bytes data, Py_ssize_t at, Py_ssize_t items_at, Py_ssize_t items_end) noexcept nogil
@cython.locals(
    items_at=Py_ssize_t, items_end=Py_ssize_t, count=cython.longlong, begins_after_zero=cython.bint, kept=cython.longlong,
    slots=cython.longlong, last_offset=cython.longlong
)
cpdef rebuild_slots(
    unsigned char[::1] index_file, long long slot_limit, long long item_limit, long long physical_limit
)
@cython.locals(at=Py_ssize_t, number=cython.longlong, key_hash=cython.longlong, offset=cython.longlong)
cpdef follow_items(
    const unsigned char[::1] items, long long first, long long[::1] newest, long long[::1] found
)
