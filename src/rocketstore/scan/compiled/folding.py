"""CRC-32 by folding: sixteen bytes at a time, as instructions of the processor.

Four lanes of 128 bits go forward over 64 bytes at a time, so that a multiplication need not wait
for the one before; then they are added to one, and that goes on in steps of 16 bytes. What is left,
fewer than 16 bytes, is shifted in. The loops are given as LLVM instructions because Numba knows no
vectors: between two rounds of a loop of its own each lane would leave its register and come back.

Derived in ``rocketstore.scan.crc``.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from rocketstore.scan.compiled import intrinsic, types
from rocketstore.scan.compiled.memory import emit_prefetch, is_bytes, pointer_to
from rocketstore.scan.crc import fold_constants

_WORD: Final = ir.IntType(64)
_LANE: Final = ir.VectorType(_WORD, 2)
_LANE_BITS: Final = ir.IntType(128)
_LANE_BYTES: Final = 16
_LANES: Final = 4
LEAST_BYTES: Final = _LANES * _LANE_BYTES
"""Fewer bytes fill no lanes."""
_PREFETCH_BYTES: Final = 2048
"""How far ahead memory is asked for: some 150 ns of folding, across the page's end."""

_FOLD_64: Final = fold_constants(64 * 8)
_FOLD_16: Final = fold_constants(16 * 8)


class _Folding:
    """Emits the instructions of one function."""

    def __init__(self, builder: Any, data: Any) -> None:
        self.builder = builder
        self.data = data
        name = "llvm.x86.pclmulqdq"
        selector = ir.IntType(8)
        self._multiply = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(_LANE, [_LANE, _LANE, selector]), name
        )
        self._halves = [ir.Constant(selector, value) for value in (0x00, 0x11)]

    def lane_at(self, at: Any) -> Any:
        pointer = self.builder.gep(self.data, [at])
        value = self.builder.load(self.builder.bitcast(pointer, _LANE.as_pointer()))
        value.align = 1
        return value

    def fold(self, lane: Any, factors: tuple[int, int], following: Any) -> Any:
        """Move a lane forward over the distance of `factors`, and add what is found there."""
        builder = self.builder
        pair = ir.Constant(_LANE, [ir.Constant(_WORD, factor) for factor in factors])
        low, high = (builder.call(self._multiply, [lane, pair, half]) for half in self._halves)
        return builder.xor(builder.xor(low, high), following)

    def fold_while(self, lanes: list[Any], at: Any, size: Any, factors: tuple[int, int]) -> Any:
        """Fold all lanes over as many steps as remain; return them and where they stopped."""
        builder = self.builder
        step = ir.Constant(_WORD, len(lanes) * _LANE_BYTES)
        before = builder.block
        head, body, behind = (
            builder.append_basic_block(f"fold.{name}") for name in ("head", "body", "behind")
        )
        builder.branch(head)
        builder.position_at_end(head)
        place = builder.phi(_WORD)
        place.add_incoming(at, before)
        moving = [builder.phi(_LANE) for _ in lanes]
        for phi, lane in zip(moving, lanes, strict=True):
            phi.add_incoming(lane, before)
        is_room = builder.icmp_signed(">=", builder.sub(size, place), step)
        builder.cbranch(is_room, body, behind)
        builder.position_at_end(body)
        if len(lanes) == _LANES:
            ahead = builder.add(place, ir.Constant(_WORD, _PREFETCH_BYTES))
            emit_prefetch(builder, builder.gep(self.data, [ahead]))
        for number, phi in enumerate(moving):
            there = builder.add(place, ir.Constant(_WORD, number * _LANE_BYTES))
            phi.add_incoming(self.fold(phi, factors, self.lane_at(there)), body)
        place.add_incoming(builder.add(place, step), body)
        builder.branch(head)
        builder.position_at_end(behind)
        return moving, place

    def shift_in(self, lane: Any, rest: Any, size: Any) -> Any:
        """Let the last `rest` bytes, of which there are 1 to 15, follow the lane."""
        builder = self.builder
        bits = builder.bitcast(lane, _LANE_BITS)
        last = self.lane_at(builder.sub(size, ir.Constant(_WORD, _LANE_BYTES)))
        shift = builder.zext(builder.shl(rest, ir.Constant(_WORD, 3)), _LANE_BITS)
        other = builder.sub(ir.Constant(_LANE_BITS, 128), shift)
        first = builder.shl(bits, other)
        tail = builder.shl(builder.lshr(builder.bitcast(last, _LANE_BITS), other), other)
        following = builder.or_(builder.lshr(bits, shift), tail)
        return self.fold(builder.bitcast(first, _LANE), _FOLD_16, builder.bitcast(following, _LANE))


@intrinsic
def folded(_typing: Any, buffer: Any, position: Any, end: Any, register: Any) -> Any:  # noqa: ARG001
    """``folded(buffer, position, end, register) -> (uint64, uint64)``: 16 bytes of equal CRC.

    At least `LEAST_BYTES` must stand between; the register before them is contained in the result.
    """
    if not is_bytes(buffer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1])
        size = builder.sub(arguments[2], arguments[1])
        folding = _Folding(builder, data)
        lanes = [folding.lane_at(ir.Constant(_WORD, n * _LANE_BYTES)) for n in range(_LANES)]
        none = ir.Constant(_LANE, [ir.Constant(_WORD, 0)] * 2)
        first = ir.Constant(ir.IntType(32), 0)
        lanes[0] = builder.xor(lanes[0], builder.insert_element(none, arguments[3], first))
        start = ir.Constant(_WORD, LEAST_BYTES)
        lanes, at = folding.fold_while(lanes, start, size, _FOLD_64)
        lane = lanes[0]
        for following in lanes[1:]:
            lane = folding.fold(lane, _FOLD_16, following)
        (lane,), at = folding.fold_while([lane], at, size, _FOLD_16)
        rest = builder.sub(size, at)
        before = builder.block
        with builder.if_then(builder.icmp_signed(">", rest, ir.Constant(_WORD, 0))):
            shifted = folding.shift_in(lane, rest, size)
            inside = builder.block
        result = builder.phi(_LANE)
        result.add_incoming(lane, before)
        result.add_incoming(shifted, inside)
        halves = [
            builder.extract_element(result, ir.Constant(ir.IntType(32), half)) for half in (0, 1)
        ]
        return context.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(types.uint64, 2)(buffer, types.int64, types.int64, types.uint64), codegen
