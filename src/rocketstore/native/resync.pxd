cimport cython
from rocketstore.native.row cimport StopReason
from rocketstore.native.view cimport (
    Bytes, Numbers, bytes_of, crc_continued, load_i32, load_u8, load_u32, load_word, numbers_of, trailing_zeros
)
from rocketstore.native.walk cimport check_record, v6_extra_bytes

cdef long long _MAGIC_V1, _MAGIC_V2, _MAGIC_BLANK, _CRC_MASK, _POLYNOMIAL, _SUM_BLOCK, _CRC_BUDGET
cdef unsigned long long _EACH_BYTE, _EACH_TOP_BIT, _EACH_MESSAGE_LEAD, _EACH_BLANK_LEAD
cdef long long[::1] _SHIFTS

cdef enum:
    _NOTHING = -1
    _OVER_BUDGET = -2
    _SPENT = 0
    _BUDGET = 1
    _ORIGIN = 2
    _KNOWN = 3
    _BLOCKS = 4
    _AT = 5
    _WORK_SIZE = 6

cdef long long multiplied(long long a, long long b) noexcept nogil
cdef bint is_zero_block(Bytes data, Py_ssize_t at) noexcept nogil
cdef unsigned long long lead_bytes(unsigned long long word) noexcept nogil
cdef bint has_no_lead(Bytes data, Py_ssize_t at) noexcept nogil
cdef long long shifted(long long crc, long long blocks) noexcept nogil
cdef long long crc_of_range(
    Bytes data, Py_ssize_t start, Py_ssize_t stop, Numbers work, Numbers sums
) noexcept nogil
@cython.locals(born_extra=int, store_extra=int)
cdef int believe(
    Bytes data, Py_ssize_t magic_at, long long base, long long file_size, Numbers work, Numbers sums
) noexcept nogil
@cython.locals(leads=cython.ulonglong, found=int)
cdef Py_ssize_t search(
    Bytes data, Py_ssize_t position, Py_ssize_t stop, long long base, long long file_size, Numbers work,
    Numbers sums
) noexcept nogil
@cython.locals(sums="long long[::1]", work="long long[::1]")
cpdef resync_within(
    const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t stop, long long base, long long file_size,
    long long budget
)
cdef Py_ssize_t last_written(Bytes data, Py_ssize_t position, Py_ssize_t stop) noexcept nogil
cpdef last_nonzero(const unsigned char[::1] buffer, Py_ssize_t position, Py_ssize_t stop)
