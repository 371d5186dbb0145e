"""Bytes with forbidden memory on both sides: a kernel that reads outside them ends the process."""

import ctypes
import mmap

import numpy as np

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(data: bytes | bytearray, *, at_end: bool = True) -> np.ndarray:
    """Return a copy of `data` that ends (or begins) right at a page that nobody may touch."""
    room = -(-max(len(data), 1) // _PAGE) * _PAGE
    mapping = mmap.mmap(-1, room + 2 * _PAGE)
    whole = np.frombuffer(mapping, dtype=np.uint8)
    start = _PAGE + (room - len(data) if at_end else 0)
    view = whole[start : start + len(data)]
    view[:] = np.frombuffer(data, dtype=np.uint8)
    for guard in (0, _PAGE + room):
        address = ctypes.c_void_p(whole.ctypes.data + guard)
        if _LIBC.mprotect(address, ctypes.c_size_t(_PAGE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    return view
