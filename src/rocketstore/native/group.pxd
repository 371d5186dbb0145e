cimport cython
from rocketstore.native.parking cimport (
    INTERRUPTED, NO_LOCK, Lock, free_lock, let_run, new_lock, now_ns, open_lock, run_handlers, sync_file, take_lock
)

cdef long long _turn, _left_out, _left_out_next, _NOBODY
cdef long long _LOOK_NS, _GATHER_NS, _TURN_NS, _LOOKS_IN_VAIN, _LONGEST_APART, _MOST_LEFT_OUT
cdef bint _looks, _may_look

cdef void begin_turn(long long thread) noexcept nogil
cdef void end_turn(long long thread) noexcept nogil
@cython.locals(until=cython.longlong)
cdef bint look_for_turn() noexcept nogil

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
    cdef public long long flushed_offset, company, rounds_apart

    @cython.locals(timeout_ns=cython.longlong)
    cdef bint _join(self, Permit permit, long long timeout_ns) except -1
    @cython.locals(seen=cython.longlong, looks=int, began=cython.longlong, share=cython.longlong, waited=cython.longlong)
    cdef int _gather_company(self, long long sync_ns) except -1
    cdef bint _sleep(self, Permit first, long long timeout_ns) except -1
    cdef bint _rest(self, long long timeout_ns) except -1
    cdef bint _gather(self, long long sync_ns, long long timeout_ns) except -1
    @cython.locals(descriptor=int, failure=int, until=cython.longlong, began=cython.longlong, ended=cython.longlong, offset=cython.longlong, thread=cython.longlong)
    cpdef object sync_rounds(self, object sync, long long limit, double longest_s)
    @cython.locals(farthest=cython.longlong, permit=Permit)
    cdef Py_ssize_t _take_within(self, long long limit) except -2
