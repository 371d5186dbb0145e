cimport cython
from rocketstore.native.view cimport Bytes, bytes_of, load_u8, load_u32

cdef long long _NOT_ASCII, _LOW_32

@cython.locals(following=int, low=int, high=int, byte=int, point=cython.longlong)
cdef (long long, Py_ssize_t) hash_other(Bytes data, Py_ssize_t at, Py_ssize_t end, long long value) noexcept nogil
cdef (int, int, int) continuation_bounds(long long lead) noexcept nogil
@cython.locals(value=cython.longlong)
cdef long long hash_of(Bytes data, Py_ssize_t at, Py_ssize_t size, long long seed) noexcept nogil
cpdef java_hash(const unsigned char[::1] buffer, Py_ssize_t at, Py_ssize_t size, long long seed)
