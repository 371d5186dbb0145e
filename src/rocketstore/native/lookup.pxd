cimport cython
from rocketstore.native.index cimport follow_chain, positive_hash
from rocketstore.native.java_hash cimport hash_of
from rocketstore.native.page cimport texts_equal, topic_of
from rocketstore.native.row cimport StopReason
from rocketstore.native.view cimport (
    Bytes, Numbers, bytes_of, find_byte, load_i32, load_i64, load_u8, load_u32, numbers_of
)
from rocketstore.native.walk cimport check_record, v6_extra_bytes

cdef long long _NAME_KEYS, _NAME_UNIQ, _NAME_KEY

cdef enum:
    _FIXED_SIZE = 91
    _HEADER_SIZE = 40

cdef bint has_word(Bytes log, Py_ssize_t at, Py_ssize_t end, Bytes name, Py_ssize_t key_at) noexcept nogil
cdef bint carries(Bytes log, Py_ssize_t at, Py_ssize_t stop, Bytes name, Py_ssize_t key_at) noexcept nogil
@cython.locals(topic_at=Py_ssize_t, size=Py_ssize_t, born_extra=int, _=int)
cdef bint is_hit(
    Bytes log, Py_ssize_t at, long long base, long long readable, Bytes name, Py_ssize_t topic_size,
    long long begin_ms, long long end_ms
) noexcept nogil
cpdef find_hits(
    const unsigned char[::1] index_file, long long slot_limit, long long item_limit,
    const unsigned char[::1] name, long long topic_size, long long begin_ms, long long end_ms,
    long long start_number, const unsigned char[::1] log, long long base, long long readable, long long[::1] hits
)
