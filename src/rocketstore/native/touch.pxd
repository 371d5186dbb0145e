cimport cython
from rocketstore.native cimport view
from rocketstore.native.group cimport Lock, free_lock, new_lock, open_lock, take_lock
from rocketstore.native.view cimport Bytes

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void *address, size_t size, int advice)

cdef long long _PIECE_BYTES, _PAGE_BYTES
cdef int _ADVICE


cdef inline bint fault_in(Bytes data, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    return madvise(<void *>view.chars_at(data, start, stop - start), stop - start, _ADVICE) == 0

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
