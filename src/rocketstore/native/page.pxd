cimport cython
from rocketstore.native cimport Column, StopReason, view
from rocketstore.native.decode cimport BorrowedBytes, LogAtHand, LogCursor, borrowed, message_of
from rocketstore.native.touch cimport is_resident, read_in
from rocketstore.native.view cimport Bytes, Numbers
from rocketstore.native.walk cimport check_record, read_properties, topic_of

cdef long long _LOW_32, MAX_EXT_ADDRESS, _MOST_MESSAGES, _NO_END, _KNOWN_NS

cdef enum:
    _ENTRY_SIZE = 20
    _FILLER_SIZE = 0x7FFFFFFF
    _FIXED_SIZE = 91
    _AHEAD = 8
    _ROOM = 32
    _LOOKED_AT = 800
    _SHORT_BYTES = 65536
    _GAP = 16384
    _AHEAD_BYTES = 1048576

cdef enum:  # why `select` stops
    _FULL = 0
    _ELSEWHERE = 1
    _OTHERS = 2
    _NO_ROOM = 3
    _COLD = 4

cdef enum:  # what an entry's record is
    _LOST = 0
    _UNWANTED = 1
    _FOREIGN = 2
    _TAKEN = 3

cpdef enum:  # kinds of pages: records back to back, messages, views of records
    RECORDS = 0
    MESSAGES = 1
    VIEWS = 2

@cython.final
cdef class QueuePages:
    cdef LogAtHand log
    cdef object topic, held_numbers, without_entry, may_stand_in
    cdef tuple statuses, recent, minimum
    cdef bytes held_names
    cdef bint is_mapped
    cdef Bytes names
    cdef Numbers numbers
    cdef long long queue_id, memory_bytes, memory_count, disk_bytes, disk_count, span, topic_size, tag_count
    cdef long long known_start, known_end, known_until_ns
    @cython.locals(page=Page)
    cpdef read(self, int kind, object queue, object offset, object max_messages)
    @cython.locals(page=Page)
    cpdef bint is_in_memory(self, object queue, object offset, object max_messages, bint waits, long long now_ns) except -1
    @cython.locals(most=cython.longlong, is_inside=cython.bint)
    cpdef bint is_known(self, object offset, object max_messages, long long now_ns) except -1
    @cython.locals(known=tuple)
    cdef object minimum_of(self, object queue)
    @cython.locals(known=tuple)
    cdef bint find_entries(self, Page page, object queue, object offset, object count) except -1

@cython.final
@cython.no_gc
cdef class Page(LogCursor):
    cdef QueuePages pages
    cdef BorrowedBytes borrowed_entries
    cdef Bytes entries
    cdef int kind
    cdef long long first_offset, most, in_disk_below, entry, stop, count, size, skipped, sought, granted, written
    cdef Bytes out
    cdef bint is_lost
    cdef int picked
    cdef long long targets[64]
    cdef long long row[28]
    @cython.locals(one=BorrowedBytes)
    cdef void use_entries(self, object buffer, long long base) except *
    cdef void aim(self, QueuePages pages, int kind, object offset, object most, object maximum) except *
    @cython.locals(reason=int, most=Py_ssize_t, records=bytes, piece=bytes)
    cdef object read(self)
    @cython.locals(count=cython.longlong, size=cython.longlong, total=cython.longlong, more=cython.longlong, is_in_disk=cython.bint, entry=cython.longlong)
    cdef Py_ssize_t most_bytes(self) noexcept nogil
    cdef bint is_old(self) noexcept nogil
    cdef long long offset_of(self, long long entry) noexcept nogil
    cdef long long size_of(self, long long entry) noexcept nogil
    cdef bint is_full(self, long long count, long long size, long long more, bint is_in_disk) noexcept nogil
    cdef bint may_match(self, long long entry) noexcept nogil
    @cython.locals(n=int, size=cython.longlong, tag_at=cython.longlong, name_at=cython.longlong)
    cdef bint tags_match(self, Py_ssize_t at, Py_ssize_t end) noexcept nogil
    @cython.locals(topic_at=Py_ssize_t, topic_size=Py_ssize_t, check_crc=cython.bint, found=int)
    cdef int judge(self, long long entry, Py_ssize_t at, long long size) noexcept nogil
    @cython.locals(
        entry=cython.longlong, stop=cython.longlong, count=cython.longlong, taken=cython.longlong, picked=int, reason=int,
        written=cython.longlong, is_copied=cython.bint, ahead=cython.longlong,
        offset=cython.longlong, size=cython.longlong, found=int
    )
    cdef int select(self) noexcept nogil
    @cython.locals(topic_at=Py_ssize_t, topic_size=Py_ssize_t, properties_at=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t)
    cdef bint is_ours(self) except -1
    @cython.locals(reason=int, at=Py_ssize_t, end=Py_ssize_t)
    cdef bint is_in_memory(self, bint waits, bint ahead) except -1
    @cython.locals(
        start=Py_ssize_t, end=Py_ssize_t, at=Py_ssize_t, offset=cython.longlong, size=cython.longlong, reason=int,
        is_message=cython.bint, is_in_disk=cython.bint, is_full=cython.bint
    )
    cdef int gather(self, bint waits, bint ahead) noexcept nogil
    cdef bint has_records(self, Py_ssize_t start, Py_ssize_t end, bint waits) noexcept nogil
    @cython.locals(at=Py_ssize_t, n=int)
    cdef void add_to(self, list items) except *

@cython.final
cdef class GetCounts:
    cdef readonly long long found, missed, messages, longest_ms
    cdef object lock
    cpdef void note(self, long long message_count, long long elapsed_ms) except *
    cdef void add(self, long long message_count, long long elapsed_ms) noexcept
