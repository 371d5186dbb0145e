from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock
from cpython.pythread cimport PyThread_type_lock as Lock
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from "pythread.h" nogil:
    int PyThread_acquire_lock_timed(Lock lock, long long microseconds, int intr_flag)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int descriptor)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<errno.h>" nogil:
    int errno
    int EINTR

cdef extern from *:
    const Lock NO_LOCK "NULL"

cdef enum:
    INTERRUPTED = -1


cdef inline Lock new_lock() except NULL:
    cdef Lock lock = PyThread_allocate_lock()
    if lock == NULL:
        raise MemoryError
    PyThread_acquire_lock_timed(lock, 0, 0)
    return lock


cdef inline void free_lock(Lock lock) noexcept:
    if lock != NULL:
        PyThread_free_lock(lock)


cdef inline void open_lock(Lock lock) noexcept nogil:
    if lock != NULL:
        PyThread_acquire_lock_timed(lock, 0, 0)  # so that one that is open does not count as two
        PyThread_release_lock(lock)


cdef inline int take_lock(Lock lock, long long timeout_ns) noexcept nogil:
    # Rounded up: a wait of less than a microsecond is one.
    cdef long long microseconds = -1 if timeout_ns < 0 else (timeout_ns + 999) // 1000
    cdef int outcome = PyThread_acquire_lock_timed(lock, microseconds, 1)
    return INTERRUPTED if outcome == 2 else outcome


cdef inline int run_handlers() except -1:
    return PyErr_CheckSignals()


cdef inline void let_run() noexcept nogil:
    sched_yield()


cdef inline long long now_ns() noexcept nogil:
    cdef timespec moment
    clock_gettime(CLOCK_MONOTONIC, &moment)
    return <long long>moment.tv_sec * 1000000000 + moment.tv_nsec


cdef inline int sync_file(int descriptor) noexcept nogil:
    while fdatasync(descriptor) != 0:
        if errno != EINTR:
            return errno
    return 0
