cimport cython
from libc.stdint cimport uintptr_t
from rocketstore.native cimport view
from rocketstore.native.group cimport Lock, free_lock, new_lock, open_lock, take_lock
from rocketstore.native.view cimport Bytes

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void *address, size_t size, int advice)
    int mincore(void *address, size_t size, unsigned char *pages)

cdef long long _PIECE_BYTES, _PAGE_BYTES
cdef int _ADVICE, _READ

cdef enum:
    _PAGES = 64  # that are asked for at once


cdef inline bint fault_in(Bytes data, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    return madvise(<void *>view.chars_at(data, start, stop - start), stop - start, _ADVICE) == 0

cdef inline uintptr_t first_page(Bytes data, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef uintptr_t at = <uintptr_t>view.chars_at(data, start, stop - start)
    return at - at % _PAGE_BYTES


cdef inline void read_in(Bytes data, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef uintptr_t at = first_page(data, start, stop)
    madvise(<void *>at, <uintptr_t>data.start + stop - at, _READ)


cdef inline bint is_resident(Bytes data, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef unsigned char pages[_PAGES]
    cdef uintptr_t at = first_page(data, start, stop)
    cdef uintptr_t end = <uintptr_t>data.start + stop
    cdef long long count, n
    while at < end:
        count = min(_PAGES, (<long long>(end - at) + _PAGE_BYTES - 1) / _PAGE_BYTES)
        if mincore(<void *>at, count * _PAGE_BYTES, pages) != 0:
            return True  # the system does not tell
        for n in range(count):
            if not pages[n] & 1:
                return False
        at += count * _PAGE_BYTES
    return True


@cython.final
cdef class PagesAhead:
    cdef const unsigned char[::1] view
    cdef Lock lock
    cdef long long size, start, stop
    cdef readonly bint is_ended
    cpdef want(self, long long start, long long stop)
    cpdef void end(self) noexcept
    @cython.locals(data=Bytes, at=cython.longlong, stop=cython.longlong)
    cpdef touch(self)
