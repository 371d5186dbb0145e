cimport cython
from libc.stdint cimport int64_t
from rocketstore.native.log_end cimport LogEnd, QueueCounter, Record, hosted
from rocketstore.native.view cimport (
    Bytes, clear_bytes, bytes_inside, find_byte, in_slot, load_i16, load_i32, load_i64, load_u8,
    NO_NUMBER, number_of, part_of, room_of, slot_named, store_i16, store_i32, system_ns
)
from rocketstore.native.walk cimport hold_names

cdef long long _DELA, _Y_END, _INNER_MU
cdef bytes _KEYS, _UNIQ_KEY, _TAGS, _WAIT

cdef bint may_be_special(Bytes source, Py_ssize_t at, Py_ssize_t size) noexcept
cdef bint is_same(object one, object other)

@cython.final
cdef class PlainPuts:
    cdef LogEnd end
    cdef dict counters, born_hosts
    cdef object flags, statistics, message_type, prepared_type, result_type, done, clock
    cdef long long longest_body
    cdef bint waits
    cdef public bint is_open
    cdef Record record
    cdef Py_ssize_t bits_slot, topic, body, tags, keys, properties, unique_key, flag, sys_flag
    cdef Py_ssize_t born_timestamp_ms, born_host, reconsume_times, prepared_offset, wait_flush
    cdef Py_ssize_t prepared_topic, prepared_record, prepared_wait_flush
    cdef int64_t now_ms(self, long long began_ns) except? -1
    cdef QueueCounter counter_of(self, object topic, object queue_id)
    cdef bytes host_of(self, object host)
    @cython.locals(end=LogEnd)
    cdef bint is_ready(self, long long now) except -1
    @cython.locals(end=LogEnd)
    cdef void undo(self, long long stop) noexcept
    @cython.locals(end=LogEnd, record=Record, start=cython.longlong, stop=cython.longlong)
    cdef int64_t write_message(
        self, object message, QueueCounter counter, bytes host, long long at, long long number, long long now
    ) except -1
    @cython.locals(end=LogEnd, at=cython.longlong)
    cdef int64_t write_properties(self, object message, long long start) except -1
    @cython.locals(end=LogEnd, position=cython.longlong, number=cython.longlong, size=cython.longlong)
    cdef put_one(self, QueueCounter counter, long long stop, long long now, long long began_ns)
    cdef note_time(self, long long began_ns, long long count)
    @cython.locals(
        began_ns=cython.longlong, now=cython.longlong, counter=QueueCounter, host=bytes, end=LogEnd, stop=cython.longlong
    )
    cpdef put_message(self, object message, object queue_id=*)
    @cython.locals(
        began_ns=cython.longlong, now=cython.longlong, counter=QueueCounter, record=Record, end=LogEnd, start=cython.longlong, stop=cython.longlong,
        block=Bytes, content=Bytes
    )
    cpdef put_prepared(self, object prepared, object body=*, object queue_id=*)
    @cython.locals(
        began_ns=cython.longlong, now=cython.longlong, counter=QueueCounter, host=bytes, end=LogEnd, at=cython.longlong, stop=cython.longlong,
        number=cython.longlong, payload=cython.longlong, spared=cython.longlong, count=cython.longlong, room=Bytes, sizes=bytearray
    )
    cpdef put_messages(self, object messages, object queue_id, long long longest)
    @cython.locals(
        end=LogEnd, record=Record, at=cython.longlong, start=cython.longlong, stop=cython.longlong, number=cython.longlong,
        count=cython.longlong, begin=cython.longlong, left=cython.longlong, body_size=cython.longlong, block_at=cython.longlong,
        size=cython.longlong, room=Bytes, source=Bytes, body=Bytes
    )
    cdef put_parts(
        self, QueueCounter counter, bytes batch, Bytes more, bytearray sizes, long long now, long long began_ns
    )
    @cython.locals(
        end=LogEnd, position=cython.longlong, number=cython.longlong, at=cython.longlong, size=cython.longlong, each=cython.longlong,
        room=Bytes
    )
    cdef put_all(self, QueueCounter counter, bytearray sizes, long long count, long long now, long long began_ns)
