cimport cython
from libc.stdint cimport int64_t
from rocketstore.native.group cimport SyncGroup
from rocketstore.native.log_end cimport LogEnd, QueueCounter, Record, bare_size
from rocketstore.native cimport view
from rocketstore.native.view cimport Bytes
from rocketstore.native.walk cimport is_plain_block

cdef bytes _WAIT
cdef long long _PIECE_BYTES, PROPERTIES_SIZE_ROOMY

cdef bint is_same(object one, object other)

@cython.final
cdef class PlainPuts:
    cdef LogEnd end
    cdef dict counters, queues, born_hosts
    cdef object flags, statistics, message_type, prepared_type, result_type, done, clock, acknowledge
    cdef SyncGroup group
    cdef double timeout_s
    cdef long long longest_body
    cdef bint waits
    cdef bint is_open
    cdef Record record
    cdef Py_ssize_t bits_slot, topic, body, tags, keys, properties, unique_key, flag, sys_flag
    cdef Py_ssize_t born_timestamp_ms, born_host, reconsume_times, prepared_offset, wait_flush
    cdef Py_ssize_t prepared_topic, prepared_record, prepared_wait_flush
    cpdef close(self)
    cdef int64_t now_ms(self, long long began_ns) except? -1
    @cython.locals(queues=dict)
    cdef QueueCounter counter_of(self, object topic, object queue_id)
    cdef bytes host_of(self, object host)
    cdef bint is_ready(self, long long now) except -1
    cdef int64_t write_message(
        self, object message, QueueCounter counter, bytes host, long long at, long long number, long long now
    ) except -1
    cpdef put_message(self, object message, object queue_id=*)
    @cython.locals(record=Record)
    cpdef put_prepared(self, object prepared, object body=*, object queue_id=*)
    @cython.locals(record=Record)
    cpdef put_encoded(
        self, object body, object block, object topic, object queue_id, object wait_flush, object born_host,
        object flag, object sys_flag, object born_timestamp_ms, object reconsume_times
    )
    @cython.locals(
        source=Bytes, texts=Bytes, room=bytes, records=list, counters=list, before="long long", count="long long"
    )
    cpdef int64_t put_rows(
        self, object file, int descriptor, object messages, object queue_ids, long long[:, ::1] rows,
        const unsigned char[::1] bodies, const unsigned char[::1] blocks
    ) except -1
    @cython.locals(
        body=Bytes, record=Record, counter=QueueCounter, before="long long", number="long long", at="long long",
        size="long long", block_at="long long", block_size="long long", born="long long", position="long long",
        start="long long", stop="long long",
    )
    cdef int64_t write_rows(
        self, int descriptor, bytes room, list records, list counters, long long[:, ::1] rows,
        long long count, Bytes source, Bytes texts, long long now
    ) except -1
    @cython.locals(sizes=bytes)
    cpdef put_messages(self, object messages, object queue_id, long long longest)
    cdef put_parts(
        self, QueueCounter counter, bytes batch, Bytes more, bytes sizes, long long now, long long began_ns,
        bint waits
    )
    cdef finish(
        self, QueueCounter counter, long long stop, long long now, long long began_ns, long long count, bytes sizes,
        bint waits
    )
