cimport cython
from cpython.exc cimport PyErr_CheckSignals as run_handlers
from cpython.pythread cimport PyThread_allocate_lock, PyThread_release_lock
from cpython.pythread cimport PyThread_get_thread_ident as this_thread
from cpython.pythread cimport PyThread_free_lock as free_lock, PyThread_type_lock as Lock
from libc.errno cimport EINTR, ENOENT, errno
from posix.stat cimport fstat, struct_stat
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport fdatasync

cdef extern from "pythread.h" nogil:
    int PyThread_acquire_lock_timed(Lock lock, long long microseconds, int intr_flag)

cdef extern from "<sched.h>" nogil:
    int let_run "sched_yield" ()

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


cdef inline void open_lock(Lock lock) noexcept nogil:
    if lock != NULL:
        PyThread_acquire_lock_timed(lock, 0, 0)  # so that one that is open does not count as two
        PyThread_release_lock(lock)


cdef inline int take_lock(Lock lock, long long timeout_ns) noexcept nogil:
    # Rounded up: a wait of less than a microsecond is one.
    cdef long long microseconds = -1 if timeout_ns < 0 else (timeout_ns + 999) // 1000
    cdef int outcome = PyThread_acquire_lock_timed(lock, microseconds, 1)
    return INTERRUPTED if outcome == 2 else outcome


cdef inline long long now_ns() noexcept nogil:
    cdef timespec moment
    clock_gettime(CLOCK_MONOTONIC, &moment)
    return <long long>moment.tv_sec * 1000000000 + moment.tv_nsec


cdef inline int sync_file(int descriptor) noexcept nogil:
    cdef struct_stat status
    while fdatasync(descriptor) != 0:
        if errno != EINTR:
            return errno
    return ENOENT if fstat(descriptor, &status) == 0 and status.st_nlink == 0 else 0


cdef long long _turn, _left_out, _left_out_next, _NOBODY
cdef long long _LOOK_NS, _GATHER_NS, _TURN_NS, _LOOKS_IN_VAIN, _LONGEST_APART, _MOST_LEFT_OUT
cdef bint _looks, _may_look

cdef void begin_turn(long long thread) noexcept nogil
cdef void end_turn(long long thread) noexcept nogil

@cython.final
cdef class Permit:
    cdef Lock lock
    cdef public long long offset

    cpdef void give(self) noexcept
    @cython.locals(outcome=int, until=cython.longlong, left=cython.longlong, other=Lock, own=Lock, thread=cython.longlong)
    cdef bint hand_over(self, Permit following, long long timeout_ns) except -1

@cython.final
cdef class SyncGroup:
    cdef object _waiting, _taken, _served
    cdef Permit _bell
    cdef bint _is_rung, _is_asked, _is_open
    cdef long long _ring_at, _apart_next
    cdef public long long flushed_offset, waiting_goal, rounds_apart
    cdef object on_sync

    @cython.locals(until=cython.longlong, permit=Permit, is_over=cython.bint)
    cpdef bint wait(self, long long offset, double timeout_s) except -1
    @cython.locals(timeout_ns=cython.longlong, following=Permit)
    cdef bint _join(self, Permit permit, long long timeout_ns) except -1
    @cython.locals(seen=cython.longlong, looks=int, began=cython.longlong, share=cython.longlong, waited=cython.longlong)
    cdef int _gather_waiting_goal(self, long long sync_ns) except -1
    cdef bint _sleep(self, Permit first, long long timeout_ns) except -1
    cpdef bint rest(self, double timeout_s) except -1
    cpdef bint gather(self, double sync_s, double timeout_s=*) except -1
    @cython.locals(descriptor=int, failure=int, until=cython.longlong, began=cython.longlong, ended=cython.longlong, offset=cython.longlong, thread=cython.longlong)
    cpdef object sync_rounds(self, object sync, long long limit, double longest_s)
    @cython.locals(farthest=cython.longlong, permit=Permit)
    cdef Py_ssize_t _take_within(self, long long limit) except -2
