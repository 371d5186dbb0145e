from rocketstore.native.dispatch_numbers cimport QUEUE_COLUMN_COUNT, SLOT_COLUMN_COUNT
from rocketstore.native.row cimport COLUMN_COUNT

cdef enum:
    BATCH_COLUMN_COUNT = 11  # of native.batch_state

cdef extern from "bytes.h" nogil:
    ctypedef struct Bytes:
        Py_ssize_t size
    ctypedef long long *Numbers
    Bytes bytes_at(const void *start, Py_ssize_t size)
    Bytes bytes_mapped(long long address, Py_ssize_t size)
    long long load_u8(Bytes data, Py_ssize_t at)
    long long load_i16(Bytes data, Py_ssize_t at)
    long long load_u32(Bytes data, Py_ssize_t at)
    long long load_i32(Bytes data, Py_ssize_t at)
    long long load_i64(Bytes data, Py_ssize_t at)
    unsigned long long load_word(Bytes data, Py_ssize_t at)
    void store_u8(Bytes data, Py_ssize_t at, long long number)
    void store_i16(Bytes data, Py_ssize_t at, long long number)
    void store_i32(Bytes data, Py_ssize_t at, long long number)
    void store_i64(Bytes data, Py_ssize_t at, long long number)
    void copy_bytes(Bytes target, Py_ssize_t to, Bytes source, Py_ssize_t at, Py_ssize_t size)
    void clear_bytes(Bytes data, Py_ssize_t at, Py_ssize_t stop)
    void publish(Numbers numbers, Py_ssize_t at, long long number)
    int trailing_zeros(unsigned long long word)
    Py_ssize_t find_byte(Bytes data, Py_ssize_t at, Py_ssize_t end, int byte)
    void prefetch(Bytes data, Py_ssize_t at)
    long long crc_of(Bytes data, Py_ssize_t at, Py_ssize_t size)
    long long crc_continued(Bytes data, Py_ssize_t at, Py_ssize_t stop, long long crc)


cdef inline Bytes bytes_of(const unsigned char[::1] buffer) noexcept nogil:
    return bytes_at(&buffer[0] if buffer.shape[0] else NULL, buffer.shape[0])


cdef inline Numbers numbers_of(long long[::1] array) noexcept nogil:
    return &array[0] if array.shape[0] else NULL


cdef inline Numbers rows_of(long long[:, ::1] matrix) noexcept nogil:
    return &matrix[0, 0] if matrix.shape[0] and matrix.shape[1] else NULL


cdef inline Numbers row_at(Numbers rows, Py_ssize_t number) noexcept nogil:
    return rows + number * COLUMN_COUNT


cdef inline Numbers slot_at(Numbers slots, Py_ssize_t number) noexcept nogil:
    return slots + number * SLOT_COLUMN_COUNT


cdef inline Numbers queue_at(Numbers queues, Py_ssize_t number) noexcept nogil:
    return queues + number * QUEUE_COLUMN_COUNT


cdef inline Numbers batch_row_at(Numbers rows, Py_ssize_t number) noexcept nogil:
    return rows + number * BATCH_COLUMN_COUNT
