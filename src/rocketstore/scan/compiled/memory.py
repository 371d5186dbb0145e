"""Unaligned loads and stores inside kernels, on byte arrays and on raw addresses.

Everything on disk is big-endian and signed. Each load gives an ``int64``, sign-extended (``u`` in
the name: zero-extended), so that kernels never mix signed and unsigned numbers, which Numba would
turn into floats.

Law: nothing here checks a bound; the caller has compared the position with the array's size.
A function with ``_address`` in its name reads or writes memory by its address (int64), such as
``array.ctypes.data + position``; the owner of that memory must be held by the caller.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from rocketstore.scan.compiled import intrinsic, types

_I8: Final = ir.IntType(8)
_I32: Final = ir.IntType(32)
_I64: Final = ir.IntType(64)


def is_bytes(array: Any) -> bool:
    """Whether a type is that of a contiguous byte array; for who writes an intrinsic."""
    return (
        isinstance(array, types.Array)
        and array.dtype == types.uint8
        and array.ndim == 1
        and array.layout == "C"
    )


def pointer_to(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    """Emit the address of one byte of a byte array."""
    struct = context.make_array(array_type)(context, builder, array)
    return builder.gep(struct.data, [position])


def _load(builder: Any, pointer: Any, bits: int, *, is_signed: bool) -> Any:
    """Load `bits` big-endian bits from an ``i8*`` and widen them to 64."""
    width = ir.IntType(bits)
    value = builder.load(builder.bitcast(pointer, width.as_pointer()))
    value.align = 1
    if bits > 8:
        swap = builder.module.declare_intrinsic("llvm.bswap", [width])
        value = builder.call(swap, [value])
    if bits == 64:
        return value
    return builder.sext(value, _I64) if is_signed else builder.zext(value, _I64)


def _store(builder: Any, pointer: Any, value: Any, bits: int) -> None:
    width = ir.IntType(bits)
    if bits < 64:
        value = builder.trunc(value, width)
    swap = builder.module.declare_intrinsic("llvm.bswap", [width])
    value = builder.call(swap, [value])
    builder.store(value, builder.bitcast(pointer, width.as_pointer())).align = 1


def _array_load(bits: int, *, is_signed: bool) -> Any:
    @intrinsic
    def load(_typing: Any, buffer: Any, position: Any) -> Any:  # noqa: ARG001 - numba reads names
        if not is_bytes(buffer):
            return None

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1])
            return _load(builder, pointer, bits, is_signed=is_signed)

        return types.int64(buffer, types.int64), codegen

    return load


def _address_load(bits: int, *, is_signed: bool) -> Any:
    @intrinsic
    def load(_typing: Any, address: Any) -> Any:  # noqa: ARG001
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], _I8.as_pointer())
            return _load(builder, pointer, bits, is_signed=is_signed)

        return types.int64(types.int64), codegen

    return load


def _array_store(bits: int) -> Any:
    @intrinsic
    def store(_typing: Any, buffer: Any, position: Any, value: Any) -> Any:  # noqa: ARG001
        if not is_bytes(buffer) or not buffer.mutable:
            return None

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1])
            _store(builder, pointer, arguments[2], bits)
            return context.get_dummy_value()

        return types.none(buffer, types.int64, types.int64), codegen

    return store


def _address_store(bits: int) -> Any:
    @intrinsic
    def store(_typing: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], _I8.as_pointer())
            _store(builder, pointer, arguments[1], bits)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), codegen

    return store


load_u8: Final = _array_load(8, is_signed=False)
"""``load_u8(buffer, position) -> int64``: one byte, without the negative-index check of ``[]``."""
load_i16: Final = _array_load(16, is_signed=True)
"""``load_i16(buffer, position) -> int64``: a Java short; likewise the other widths."""
load_u16: Final = _array_load(16, is_signed=False)
load_i32: Final = _array_load(32, is_signed=True)
load_u32: Final = _array_load(32, is_signed=False)
load_i64: Final = _array_load(64, is_signed=True)

store_i16: Final = _array_store(16)
"""``store_i16(buffer, position, value)``: the low bits of `value`; likewise the other widths."""
store_i32: Final = _array_store(32)
store_i64: Final = _array_store(64)

load_i16_address: Final = _address_load(16, is_signed=True)
"""``load_i16_address(address) -> int64``; likewise the other widths."""
load_i32_address: Final = _address_load(32, is_signed=True)
load_i64_address: Final = _address_load(64, is_signed=True)

store_i16_address: Final = _address_store(16)
"""``store_i16_address(address, value)``; likewise the other widths."""
store_i32_address: Final = _address_store(32)
store_i64_address: Final = _address_store(64)


@intrinsic
def load_word(_typing: Any, buffer: Any, position: Any) -> Any:  # noqa: ARG001
    """``load_word(buffer, position) -> uint64``: eight bytes, the first in the lowest bits."""
    if not is_bytes(buffer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1])
        value = builder.load(builder.bitcast(pointer, _I64.as_pointer()))
        value.align = 1
        return value

    return types.uint64(buffer, types.int64), codegen


@intrinsic
def bswap64(_typing: Any, value: Any) -> Any:  # noqa: ARG001
    """``bswap64(value) -> int64``: the eight bytes in reverse order."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        swap = builder.module.declare_intrinsic("llvm.bswap", [_I64])
        return builder.call(swap, [arguments[0]])

    return types.int64(types.int64), codegen


@intrinsic
def bswap32(_typing: Any, value: Any) -> Any:  # noqa: ARG001
    """``bswap32(value) -> int32``: the four bytes in reverse order."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        swap = builder.module.declare_intrinsic("llvm.bswap", [_I32])
        return builder.call(swap, [arguments[0]])

    return types.int32(types.int32), codegen


@intrinsic
def address_of(_typing: Any, buffer: Any, position: Any) -> Any:  # noqa: ARG001
    """``address_of(buffer, position) -> int64``: the memory address of one byte."""
    if not is_bytes(buffer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.ptrtoint(pointer, _I64)

    return types.int64(buffer, types.int64), codegen


@intrinsic
def copy_address(_typing: Any, target: Any, source: Any, size: Any) -> Any:  # noqa: ARG001
    """``copy_address(target, source, size)``: copy bytes between two addresses; may overlap."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = _I8.as_pointer()
        move = builder.module.declare_intrinsic("llvm.memmove", [pointer, pointer, _I64])
        to = builder.inttoptr(arguments[0], pointer)
        origin = builder.inttoptr(arguments[1], pointer)
        builder.call(move, [to, origin, arguments[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), codegen


@intrinsic
def copy_bytes(
    _typing: Any,
    target: Any,
    target_at: Any,  # noqa: ARG001
    source: Any,
    source_at: Any,  # noqa: ARG001
    size: Any,  # noqa: ARG001
) -> Any:
    """``copy_bytes(target, target_at, source, source_at, size)``: copy between byte arrays."""
    if not is_bytes(target) or not target.mutable or not is_bytes(source):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _I8.as_pointer()
        move = builder.module.declare_intrinsic("llvm.memmove", [pointer, pointer, _I64])
        to = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1])
        origin = pointer_to(context, builder, signature.args[2], arguments[2], arguments[3])
        builder.call(move, [to, origin, arguments[4], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    arguments = (target, types.int64, source, types.int64, types.int64)
    return types.none(*arguments), codegen


@intrinsic
def load_published(_typing: Any, numbers: Any, index: Any) -> Any:  # noqa: ARG001
    """``load_published(numbers, index) -> int64``: read what another thread publishes.

    An acquire load of an element of an int64 array: it is done anew each time, and what the other
    thread wrote before is visible after it.
    """
    if not isinstance(numbers, types.Array) or numbers.dtype != types.int64:
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(numbers, types.int64), codegen


@intrinsic
def publish(_typing: Any, numbers: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    """``publish(numbers, index, value)``: the release store that `load_published` pairs with."""
    if not isinstance(numbers, types.Array) or numbers.dtype != types.int64:
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.none(numbers, types.int64, types.int64), codegen


@intrinsic
def trailing_zeros(_typing: Any, word: Any) -> Any:  # noqa: ARG001
    """``trailing_zeros(word) -> int64``: zero bits below the lowest set bit of a uint64."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


def emit_prefetch(builder: Any, pointer: Any) -> None:
    """Emit the hint that the cache line at an address is wanted soon; no access, so never wrong."""
    number = ir.IntType(32)
    name = "llvm.prefetch.p0i8"
    ask = builder.module.globals.get(name) or ir.Function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), number, number, number]),
        name,
    )
    for_reading, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
    builder.call(ask, [pointer, for_reading, keep, data])


@intrinsic
def prefetch(_typing: Any, buffer: Any, position: Any) -> Any:  # noqa: ARG001
    """``prefetch(buffer, position)``: ask for the cache line of a byte that is wanted soon.

    A hint, not an access: the position may be any number, also outside the array.
    """
    if not is_bytes(buffer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit_prefetch(
            builder, pointer_to(context, builder, signature.args[0], arguments[0], arguments[1])
        )
        return context.get_dummy_value()

    return types.none(buffer, types.int64), codegen
