from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport uintptr_t
from libc.string cimport memcmp, memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from rocketstore.native cimport Column, QueueColumn, SlotColumn

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    const char *utf8_or_null "PyUnicode_AsUTF8AndSize"(object text, Py_ssize_t *size)
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow)
    void PyErr_Clear()
    void Py_XDECREF(PyObject *object)

cdef extern from "unistd.h" nogil:
    Py_ssize_t pwrite(int descriptor, const void *data, size_t size, long position)

cdef extern from *:
    const long long NO_NUMBER "LLONG_MIN"

cdef extern from "bytes.h" nogil:
    ctypedef struct Bytes:
        unsigned char *start
        Py_ssize_t size
    ctypedef long long *Numbers
    void check_range "CHECK_RANGE"(Bytes data, Py_ssize_t at, Py_ssize_t size)
    Bytes bytes_at(const void *start, Py_ssize_t size)
    long long load_u8(Bytes data, Py_ssize_t at)
    long long load_i16(Bytes data, Py_ssize_t at)
    long long load_u32(Bytes data, Py_ssize_t at)
    long long load_i32(Bytes data, Py_ssize_t at)
    long long load_i64(Bytes data, Py_ssize_t at)
    unsigned long long load_word(Bytes data, Py_ssize_t at)
    Py_ssize_t find_byte(Bytes data, Py_ssize_t at, Py_ssize_t end, int byte)
    void store_u8(Bytes data, Py_ssize_t at, long long number)
    void store_i16(Bytes data, Py_ssize_t at, long long number)
    void store_i32(Bytes data, Py_ssize_t at, long long number)
    void store_i64(Bytes data, Py_ssize_t at, long long number)
    unsigned int crc32_continued(unsigned int crc, const unsigned char *data, size_t size, size_t more)
    int trailing_zeros "__builtin_ctzll"(unsigned long long word)
    void prefetch_to_write(const unsigned char *address)
    void prefetch_line "__builtin_prefetch"(const void *address, int is_written, int locality)
    void store_atomically "__atomic_store_n"(long long *number, long long value, int order)
    const int AFTER_ALL_BEFORE "__ATOMIC_RELEASE"


cdef inline const char *chars_at(Bytes data, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    check_range(data, at, size)
    return <const char *>data.start + at


cdef inline bint equal_bytes(Bytes first, Py_ssize_t at, Bytes second, Py_ssize_t other, Py_ssize_t size) noexcept nogil:
    return memcmp(chars_at(first, at, size), chars_at(second, other, size), size) == 0


cdef inline Bytes bytes_mapped(long long address, Py_ssize_t size) noexcept nogil:
    return bytes_at(<const void *><uintptr_t>address, size)


cdef inline void copy_bytes(Bytes target, Py_ssize_t to, Bytes source, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    check_range(target, to, size)
    if size == 8:  # a host, say: no call for it
        memcpy(target.start + to, chars_at(source, at, size), 8)
    else:
        memcpy(target.start + to, chars_at(source, at, size), size)


cdef inline Bytes piece_at(Bytes piece, Py_ssize_t position) noexcept nogil:
    return bytes_at(<const void *>(<uintptr_t>piece.start - <uintptr_t>position), position + piece.size)


cdef inline void write_out(int descriptor, Bytes data, Py_ssize_t at, Py_ssize_t stop, Bytes mapped) noexcept nogil:
    if pwrite(descriptor, chars_at(data, at, stop - at), stop - at, at) != stop - at:
        copy_bytes(mapped, at, data, at, stop - at)


cdef inline void clear_bytes(Bytes data, Py_ssize_t at, Py_ssize_t stop) noexcept nogil:
    check_range(data, at, stop - at)
    if stop > at:  # what was never opened has no address
        memset(data.start + at, 0, stop - at)


cdef inline void publish(Numbers numbers, Py_ssize_t at, long long number) noexcept nogil:
    store_atomically(numbers + at, number, AFTER_ALL_BEFORE)


cdef inline void prefetch(Bytes data, Py_ssize_t at) noexcept nogil:
    prefetch_line(<const void *>(<uintptr_t>data.start + <uintptr_t>at), 0, 3)


cdef enum:
    CRC_MASK = 0x7FFFFFFF
    _JUDGED_BYTES = 256  # what is looked at first; most of the rest is only copied
    _AWAITED_BYTES = 4416  # a record of 4 KiB; of a longer one the processor foresees the rest


cdef inline void prefetch_reads(Bytes data, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t ahead
    for ahead in range(0, min(size, _AWAITED_BYTES), 64):
        if ahead < _JUDGED_BYTES:
            prefetch(data, at + ahead)
        else:  # into the second-level cache, for which a processor awaits more lines at once
            prefetch_line(<const void *>(<uintptr_t>data.start + <uintptr_t>(at + ahead)), 0, 2)


cdef inline void prefetch_writes(Bytes data, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t line
    for line in range(at, at + min(size, 2048), 64):  # a processor awaits no more lines than that
        prefetch_to_write(<const unsigned char *>(<uintptr_t>data.start + <uintptr_t>line))


cdef inline long long crc_of(Bytes data, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    return crc_continued(data, at, at + size, 0) & CRC_MASK


cdef inline long long crc_continued(Bytes data, Py_ssize_t at, Py_ssize_t stop, long long crc) noexcept nogil:
    return crc32_continued(<unsigned int>crc, <unsigned char *>chars_at(data, at, stop - at), stop - at, data.size - stop)


cdef inline Bytes borrow(object buffer, Py_buffer *export) except *:
    PyObject_GetBuffer(buffer, export, PyBUF_SIMPLE)
    return bytes_at(export.buf, export.len)


cdef inline void release(Py_buffer *export) noexcept:
    PyBuffer_Release(export)


cdef inline Bytes bytes_inside(bytes text) noexcept:
    if text is None:
        return bytes_at(NULL, 0)
    return bytes_at(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef inline bytes empty_record(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


cdef inline bytes filled_record(bytes record, Py_ssize_t size):
    return record if size == PyBytes_GET_SIZE(record) else copy_of(bytes_inside(record), 0, size)


cdef inline bytes copy_of(Bytes data, Py_ssize_t at, Py_ssize_t size):
    return PyBytes_FromStringAndSize(chars_at(data, at, size), size)


cdef inline str ascii_of(Bytes data, Py_ssize_t at, Py_ssize_t size):
    return PyUnicode_DecodeASCII(chars_at(data, at, size), size, NULL)


cdef inline Bytes bytes_of(const unsigned char[::1] buffer) noexcept nogil:
    return bytes_at(&buffer[0] if buffer.shape[0] else NULL, buffer.shape[0])


cdef inline Numbers numbers_of(long long[::1] array) noexcept nogil:
    return &array[0] if array.shape[0] else NULL


cdef inline Numbers rows_of(long long[:, ::1] matrix) noexcept nogil:
    return &matrix[0, 0] if matrix.shape[0] and matrix.shape[1] else NULL


cdef inline Numbers row_at(Numbers rows, Py_ssize_t number) noexcept nogil:
    return rows + number * Column.COUNT


cdef inline Numbers slot_at(Numbers slots, Py_ssize_t number) noexcept nogil:
    return slots + number * SlotColumn.COUNT


cdef inline Numbers queue_at(Numbers queues, Py_ssize_t number) noexcept nogil:
    return queues + number * QueueColumn.COUNT


# --- objects of Python, read without running any of it ----------------------------------------------


cdef inline Bytes part_of(Bytes source, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    return bytes_at(source.start + at, size)


cdef inline Bytes utf8_of(object text) noexcept:
    cdef Py_ssize_t size = -1
    cdef const char *start = utf8_or_null(text, &size)
    if start == NULL:
        PyErr_Clear()
        size = -1
    return bytes_at(start, size)


cdef inline long long number_of(object number, int bits) noexcept:
    cdef int overflow = 0
    cdef long long value
    if number is 0:  # one object, and what most fields are
        return 0
    if type(number) is not int:
        return NO_NUMBER
    value = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow != 0 or (bits == 32 and not -0x7FFFFFFF - 1 <= value <= 0x7FFFFFFF):
        return NO_NUMBER
    return value


# Where objects of a class keep an attribute; an ordinary look-up takes fifteen times as long.
cdef inline Py_ssize_t slot_named(object kind, str name) except -1:
    found = getattr(kind, name)
    if type(found).__name__ != "member_descriptor":
        raise TypeError(f"{kind.__name__}.{name} is kept in no slot")
    return (<PyMemberDescrObject *>found).d_member.offset


cdef inline object in_slot(object owner, Py_ssize_t slot):
    cdef PyObject *value = (<PyObject **>(<char *><PyObject *>owner + slot))[0]
    return None if value == NULL else <object>value


cdef inline void set_slot(object owner, Py_ssize_t slot, object value) noexcept:
    cdef PyObject **held = <PyObject **>(<char *><PyObject *>owner + slot)
    cdef PyObject *before = held[0]
    Py_INCREF(value)
    held[0] = <PyObject *>value
    Py_XDECREF(before)


cdef inline long long system_ns() noexcept nogil:
    cdef timespec moment
    clock_gettime(CLOCK_REALTIME, &moment)
    return <long long>moment.tv_sec * 1000000000 + moment.tv_nsec
