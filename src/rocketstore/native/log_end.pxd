cimport cython
from libc.stdint cimport int64_t
from rocketstore.native cimport view
from rocketstore.native.view cimport Bytes
from rocketstore.native.walk cimport has_offset

cdef long long _MAGIC, _LONGEST, _ROOMY
cdef unsigned long long _THREES, _HIGHEST
cdef bytes _KEYS, _TAGS, _UNIQUE_KEY
cdef frozenset _SPECIAL

cdef bint has_separator(Bytes text) noexcept
cdef fitting(str name, object value, object bits)
cdef long long bare_size(Py_ssize_t born_host_size, Py_ssize_t store_host_size, Py_ssize_t topic_size) noexcept
cdef long long hosted(long long sys_flag, Py_ssize_t born_host_size) noexcept

@cython.final
cdef class QueueCounter:
    cdef readonly object key
    cdef readonly bytes topic
    cdef readonly long long queue_id, first_offset
    cdef public long long next_offset, stored_bytes

@cython.final
cdef class Record:
    cdef readonly bytes body, properties, born_host
    cdef readonly long long flag, sys_flag, born, reconsume_times, prepared_offset
    cdef readonly long long inner_count
    cdef readonly bint is_born_now
    cdef bint take(self, bytes host, object flag, object sys_flag, object born, object times, object offset) noexcept

@cython.final
cdef class LogEnd:
    cdef public bytes store_host
    cdef readonly object file
    cdef readonly long long base, position, limit
    cdef public long long max_offset, last_store_timestamp_ms, locked_since_ms, behind_ms
    cdef public long long look_at, put_count, put_bytes
    cdef public object on_look
    cdef public bint is_busy
    cdef unsigned char[::1] view
    cdef Bytes data, mapped
    cdef long long mapped_limit
    cdef Py_ssize_t position_slot
    cdef bint needs_slow_path
    cdef long long write_head(
        self, Record record, Bytes body, QueueCounter counter, long long at, long long number, long long now
    ) noexcept
    cdef long long add_bytes(self, long long at, Bytes source, Py_ssize_t begin, Py_ssize_t size) noexcept
    cdef long long add_byte(self, long long at, int byte) noexcept
    cdef long long add_text(self, long long at, object text) noexcept
    cdef long long add_name(self, long long at, long long start, bytes name) noexcept
    cdef long long add_value(self, long long at, long long start, bytes name, object value) noexcept
    cdef int64_t add_keys(self, long long at, long long start, tuple keys) except -1
    cdef int64_t add_further(self, long long at, dict properties) except -1
    cdef int64_t add_properties(
        self, long long start, object properties, object keys, object unique_key, object tags
    ) except -1
    cdef void end_properties(self, long long start, long long stop) noexcept
    cdef long long add_record(
        self, Record record, Bytes body, QueueCounter counter, long long at, long long number, long long now
    ) noexcept
    @cython.locals(record=Record)
    cpdef write(self, QueueCounter counter, object records, long long now_ms)
    cdef void take_back(self, long long stop) noexcept
    cdef publish(self, QueueCounter counter, long long count, long long stop, long long now)
    cdef reach(self, long long stop, long long now)
    cdef void begin_piece(self, Bytes piece) noexcept
    cdef void end_piece(self, int descriptor, long long stop) noexcept
