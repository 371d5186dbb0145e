cimport cython
from rocketstore.native cimport StopReason, view
from rocketstore.native.view cimport Bytes, Numbers
from rocketstore.native.walk cimport body_position, check_record, crc_agrees

cdef long long _POLYNOMIAL
cdef unsigned long long _EACH_BYTE, _EACH_TOP_BIT, _EACH_MESSAGE_LEAD, _EACH_BLANK_LEAD

cdef enum:
    _SUM_BLOCK = 4096

cdef long long multiplied(long long a, long long b) noexcept nogil
@cython.locals(factor=cython.longlong)
cdef long long shifted(long long crc, long long blocks) noexcept nogil
cdef bint is_zero_block(Bytes data, Py_ssize_t at) noexcept nogil
cdef unsigned long long lead_bytes(unsigned long long word) noexcept nogil
cdef bint has_no_lead(Bytes data, Py_ssize_t at) noexcept nogil

@cython.final
cdef class Search:
    cdef Bytes data
    cdef long long base, file_size, budget, spent, origin, known
    cdef Numbers sums
    cdef object held
    cdef void begin(self, Bytes data, long long base, long long file_size, long long budget) noexcept
    cdef void keep_sums(self, long long origin) except *
    cdef Py_ssize_t body_crc(self, long long record_at, long long start, long long stop) except -1 nogil
    cdef bint believes(self, Py_ssize_t position) except -1 nogil
    @cython.locals(data=Bytes, leads=cython.ulonglong, step=int)
    cdef Py_ssize_t find(self, Py_ssize_t position, Py_ssize_t stop) except -2 nogil

@cython.locals(one=Search)
cpdef resync_within(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t stop, long long base, long long file_size,
    long long budget
)
@cython.locals(at=Py_ssize_t)
cpdef last_nonzero(const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t stop)
