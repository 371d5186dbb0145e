"""Usual sends: from the bytes of a frame to a command whose custom header is typed already.

Producers write the header of a send (codes 310 and 320) as one JSON object without blanks, whose
custom fields are strings in ASCII. That form is read here, in one pass and without a table of
texts. Anything else gives None, and ``remoting.json_header`` and ``remoting.fields`` read it.

Law: what is read here, is read there alike; they are the oracle. Every position is compared with
the end of the header before a byte is looked at.

Source: RemotingCommand and SendMessageRequestHeaderV2 of 4.9.8, fastjson 1.2.76.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

try:
    import cython
except ImportError:
    from rocketstore.native import no_cython as cython

if not cython.compiled:
    from rocketstore.native import view

    NONE = -1  # in place of a number or a size that there is not
    _MOST_INT32 = (1 << 31) - 1
    _NEEDED = 0xFF  # the bits of the letters a to h

_CODE, _FLAG, _OPAQUE, _VERSION = b"code", b"flag", b"opaque", b"version"
_FIELDS, _LANGUAGE, _TYPE = b"extFields", b"language", b"serializeTypeCurrentRPC"
_TRUE, _FALSE = b"true", b"false"


class SendReader:
    """Reads usual sends of `codes`.

    `make_command` takes code, opaque, flag, fields, remark, language, version, kind, body and
    header in this order, `make_header` the fields of a send in the order of their letters.
    `languages` are those that have a name. Numbers and booleans of a send stand in `numbers`, each
    at the place of its letter in the alphabet. It `is_open` where it is compiled: interpreted, the
    general way is faster.
    """

    def __init__(
        self, make_command: Callable[..., Any], make_header: Callable[..., Any], kind: Any,
        languages: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.make_command = make_command
        self.make_header = make_header
        self.kind = kind
        self.languages = dict(languages)
        if not cython.compiled:
            self.numbers: Any = [NONE] * 13
        self.is_open = cython.compiled

    def read(self, frames: Any, start: int, header_stop: int, stop: int) -> Any:
        """Return the command of a frame whose header is in ``[start, header_stop)``, or None."""
        if not self.is_open or type(frames) is not bytes:
            return None
        self.data = view.bytes_inside(frames)
        if not 0 <= start <= header_stop <= stop <= self.data.size:
            return None
        self.at = start
        self.stop = header_stop
        return self.command_of(stop)

    def command_of(self, stop: int) -> Any:
        """Read the header; see `read`."""
        code = opaque = flag = version = language_at = language_size = NONE
        seen = 0
        if not self.takes(0x7B):
            return None
        is_more = True
        while is_more:
            at = self.at + 1
            size = self.plain_text()
            if size < 0 or not self.takes(0x3A):
                return None
            bit = 0
            if self.is_name(_CODE, at, size):
                bit, code = 1, self.number()
                if code != 310 and code != 320:
                    return None
            elif self.is_name(_FLAG, at, size):
                bit, flag = 2, self.number()
            elif self.is_name(_OPAQUE, at, size):
                bit, opaque = 4, self.number()
            elif self.is_name(_VERSION, at, size):
                bit, version = 8, self.number()
            elif self.is_name(_FIELDS, at, size):
                bit = 16 if not seen & 16 and self.read_fields() else 0
            elif self.is_name(_LANGUAGE, at, size):
                bit, language_at = 32, self.at + 1
                language_size = self.plain_text()
            elif self.is_name(_TYPE, at, size):
                bit = 64 if self.plain_text() >= 0 else 0
            if bit == 0 or seen & bit:
                return None
            seen |= bit
            is_more = self.takes(0x2C)
        if not self.takes(0x7D) or self.at != self.stop:
            return None
        if seen & 63 != 63 or min(code, flag, opaque, version, language_size) < 0:
            return None
        language = self.languages.get(view.ascii_of(self.data, language_at, language_size))
        if language is None:
            return None
        body = view.copy_of(self.data, self.stop, stop - self.stop)
        times, most_times = self.numbers[9], self.numbers[11]
        header = self.make_header(
            self.group, self.topic, self.template, self.numbers[3], self.numbers[4],
            self.numbers[5], self.numbers[6], self.numbers[7], self.properties,
            times if times >= 0 else None, self.numbers[10] != 0,
            most_times if most_times >= 0 else None, self.numbers[12] != 0,
        )  # fmt: skip
        return self.make_command(
            code, opaque, flag, None, None, language, version, self.kind, body, header
        )

    def read_fields(self) -> bool:
        """Read the custom fields; return whether all are there, each once, and usual."""
        self.numbers[9] = self.numbers[11] = NONE
        self.numbers[10] = self.numbers[12] = False
        self.properties = None
        seen = 0
        if not self.takes(0x7B):
            return False
        is_more = True
        while is_more:
            at = self.at + 1
            size = self.plain_text()
            if size != 1 or not self.takes(0x3A):
                return False
            letter = view.load_u8(self.data, at) - 0x61
            if letter < 0 or letter > 25 or seen >> letter & 1:
                return False
            seen |= 1 << letter
            if not self.read_field(letter):
                return False
            is_more = self.takes(0x2C)
        return seen & _NEEDED == _NEEDED and self.takes(0x7D)

    def read_field(self, letter: int) -> bool:
        """Read the value of a field; return whether it is usual."""
        if letter == 8:
            self.properties = self.escaped_text()
            return self.properties is not None
        at = self.at + 1
        size = self.plain_text()
        if size < 0:
            return False
        if letter > 12:  # a name that a newer client has added
            return True
        if letter < 3:
            text = view.ascii_of(self.data, at, size)
            if letter == 0:
                self.group = text
            elif letter == 1:
                self.topic = text
            else:
                self.template = text
            return True
        if letter == 10 or letter == 12:
            is_true = self.is_name(_TRUE, at, size)
            self.numbers[letter] = is_true
            return is_true or self.is_name(_FALSE, at, size)
        number = self.digits(at, size, 18)
        self.numbers[letter] = number
        return number >= 0 and (letter == 6 or number <= _MOST_INT32)

    # --- JSON, of which only the usual forms are known ------------------------------------------

    def takes(self, byte: int) -> bool:
        """Whether this byte comes next; it is stepped over."""
        if self.at < self.stop and view.load_u8(self.data, self.at) == byte:
            self.at += 1
            return True
        return False

    def is_name(self, name: bytes, at: int, size: int) -> bool:
        """Whether these bytes are a name."""
        known = view.bytes_inside(name)
        return known.size == size and view.equal_bytes(self.data, at, known, 0, size)

    def plain_text(self) -> int:
        """Step over a string without escapes; return its size, `NONE` where it is another thing."""
        at = self.at + 1
        if not self.takes(0x22):
            return NONE
        while at < self.stop:
            byte = view.load_u8(self.data, at)
            if byte == 0x22:
                size = at - self.at
                self.at = at + 1
                return size
            if byte < 0x20 or byte > 0x7E or byte == 0x5C:
                return NONE
            at += 1
        return NONE

    def digits(self, at: int, size: int, most: int) -> int:
        """Return the number that a range says, which has no sign and no zero in front."""
        if size < 1 or size > most or (size > 1 and view.load_u8(self.data, at) == 0x30):
            return NONE
        number = 0
        for each in range(size):
            digit = view.load_u8(self.data, at + each) - 0x30
            if digit < 0 or digit > 9:
                return NONE
            number = 10 * number + digit
        return number

    def number(self) -> int:
        """Step over a number of the header; return it, `NONE` where it is another thing."""
        at = self.at
        while self.at < self.stop and 0x30 <= view.load_u8(self.data, self.at) <= 0x39:
            self.at += 1
        number = self.digits(at, self.at - at, 10)
        return number if number <= _MOST_INT32 else NONE

    def hex_digit(self, at: int) -> int:
        """Return the value of a hexadecimal digit, `NONE` where it is another thing."""
        byte = view.load_u8(self.data, at)
        if 0x30 <= byte <= 0x39:
            return byte - 0x30
        byte |= 0x20
        return byte - 0x57 if 0x61 <= byte <= 0x66 else NONE

    def escaped_text(self) -> Any:
        """Step over a string whose only escapes are of ASCII by number; return it, or None."""
        at = self.at + 1
        if not self.takes(0x22):
            return None
        room = view.empty_record(self.stop - at)
        target = view.bytes_inside(room)
        size = 0
        while at < self.stop:
            byte = view.load_u8(self.data, at)
            if byte == 0x22:
                self.at = at + 1
                return view.ascii_of(target, 0, size)
            if byte == 0x5C:  # \u00XX
                if self.stop - at < 6 or view.load_u32(self.data, at) != 0x5C753030:
                    return None
                high, low = self.hex_digit(at + 4), self.hex_digit(at + 5)
                if high < 0 or high > 7 or low < 0:
                    return None
                byte = 16 * high + low
                at += 5
            elif byte < 0x20 or byte > 0x7E:
                return None
            view.store_u8(target, size, byte)
            size += 1
            at += 1
        return None
