cimport cython
from rocketstore.native cimport view
from rocketstore.native.view cimport Bytes

cdef enum:
    NONE = -1
    _MOST_INT32 = 0x7FFFFFFF
    _NEEDED = 0xFF

cdef bytes _CODE, _FLAG, _OPAQUE, _VERSION, _FIELDS, _LANGUAGE, _TYPE, _TRUE, _FALSE

@cython.final
cdef class SendReader:
    cdef object make_command, make_header, kind
    cdef dict languages
    cdef public bint is_open
    cdef Bytes data
    cdef Py_ssize_t at, stop
    cdef str group, topic, template
    cdef object properties
    cdef long long numbers[13]
    cpdef read(self, object frames, Py_ssize_t start, Py_ssize_t header_stop, Py_ssize_t stop)
    @cython.locals(
        code=cython.longlong, opaque=cython.longlong, flag=cython.longlong, version=cython.longlong,
        language_at=Py_ssize_t, language_size=Py_ssize_t, seen=int, bit=int, is_more=cython.bint, at=Py_ssize_t,
        size=Py_ssize_t, times=cython.longlong, most_times=cython.longlong
    )
    cdef command_of(self, Py_ssize_t stop)
    @cython.locals(seen=int, is_more=cython.bint, at=Py_ssize_t, size=Py_ssize_t, letter=int)
    cdef bint read_fields(self) except -1
    @cython.locals(at=Py_ssize_t, size=Py_ssize_t, is_true=cython.bint, number=cython.longlong)
    cdef bint read_field(self, int letter) except -1
    cdef bint takes(self, int byte) noexcept
    cdef bint is_name(self, bytes name, Py_ssize_t at, Py_ssize_t size) noexcept
    @cython.locals(at=Py_ssize_t, size=Py_ssize_t, byte=int)
    cdef Py_ssize_t plain_text(self) noexcept
    @cython.locals(number=cython.longlong, digit=int, each=Py_ssize_t)
    cdef long long digits(self, Py_ssize_t at, Py_ssize_t size, int most) noexcept
    @cython.locals(at=Py_ssize_t, number=cython.longlong)
    cdef long long number(self) noexcept
    @cython.locals(byte=int)
    cdef int hex_digit(self, Py_ssize_t at) noexcept
    @cython.locals(at=Py_ssize_t, size=Py_ssize_t, room=bytes, target=Bytes, byte=int, high=int, low=int)
    cdef escaped_text(self)
