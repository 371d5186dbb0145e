cimport cython
from rocketstore.native cimport CallsFor, Column, SlotColumn, view
from rocketstore.native.index cimport key_hash_of
from rocketstore.native.view cimport Bytes, Numbers
from rocketstore.native.walk cimport property_at

cdef long long _TOPIC_FACTOR, _QUEUE_FACTOR

@cython.locals(begin=cython.longlong, length=cython.longlong, written=Py_ssize_t)
cpdef copy_slices(
    const unsigned char[::1] buffer, const long long[:] at, const long long[:] size, unsigned char[::1] target
)
@cython.locals(begin=cython.longlong, length=cython.longlong, count=Py_ssize_t)
cpdef slice_crcs(
    const unsigned char[::1] buffer, const long long[:] at, const long long[:] size, long long[::1] target
)
cdef bint has_name_before(Bytes data, long long[:, ::1] parts, Py_ssize_t first, Py_ssize_t part) noexcept nogil
@cython.locals(
    position=Py_ssize_t, length=cython.longlong, count=Py_ssize_t, doubtful=int, name_stop=Py_ssize_t, end=Py_ssize_t
)
cpdef split_properties(
    const unsigned char[::1] buffer, const long long[:] at, const long long[:] size, long long[::1] ends,
    long long[:, ::1] parts
)
cdef long long entry_code(Numbers row, Numbers delays_ms, Py_ssize_t delay_count) noexcept nogil
cpdef list_codes(long long[:, ::1] cols, long long[::1] delays_ms, long long[::1] codes)
cdef long long find_queue(Numbers slots, long long slot_count, Bytes topics, Bytes data, Numbers row) noexcept nogil
cpdef number_queues(
    const unsigned char[::1] buffer, long long[:, ::1] cols, Py_ssize_t first, long long[:, ::1] slots,
    const unsigned char[::1] topics, long long[::1] numbers
)
@cython.locals(unique_end=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t, end=Py_ssize_t)
cdef (Py_ssize_t, Py_ssize_t) next_key(Bytes data, Numbers row, Py_ssize_t after) noexcept nogil
@cython.locals(at=Py_ssize_t, end=Py_ssize_t)
cpdef list_items(
    const unsigned char[::1] buffer, long long[:, ::1] cols, long long[::1] rows, long long[::1] hashes
)
