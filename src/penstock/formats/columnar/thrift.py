"""Thrift's compact protocol, as far as the footers of Parquet files need it: look at some fields, step over the rest.

Everything comes from outside: sizes are checked before they are used, and nesting is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOL_TRUE, BOOL_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_WHOLE_NUMBERS = (I16, I32, I64)
_DEEPEST = 24  # footers are nested seven levels deep
_LONGEST_NUMBER = 10


class ThriftError(ValueError):
    """The bytes are not what Thrift writes."""


class CompactReader:
    """Reads one value after another from `position` on.

    A thousand footers hold a million values: what every value goes through is written out, not called.
    """

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data, self.position = data, position

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the kind of each field of a struct; the caller reads or skips it before the next."""
        number = 0
        while True:
            head = self.byte()
            if head == 0:
                return
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15

    def byte(self) -> int:
        """Return the next byte."""
        try:
            byte = self.data[self.position]
        except IndexError:
            raise _too_early() from None
        self.position += 1
        return byte

    def unsigned(self) -> int:
        """Return a number of any length."""
        begin = self.position
        self._skip_number()
        if self.position == begin + 1:
            return self.data[begin]
        value = 0
        for byte in reversed(self.data[begin : self.position]):
            value = value << 7 | byte & 127
        return value

    def integer(self) -> int:
        """Return a number with its sign."""
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        """Return a text or other bytes."""
        begin = self._skip_binary()
        return self.data[begin : self.position]

    def items(self) -> tuple[int, int]:
        """Return how many items a list has, and their kind; the caller reads or skips each."""
        head = self.byte()
        count = self.unsigned() if head >> 4 == 15 else head >> 4
        if count > len(self.data) - self.position:  # each takes a byte at least
            raise ThriftError("it holds a list that is longer than the footer itself")
        return count, head & 15

    def skip(self, kind: int, depth: int = 0) -> None:
        """Step over a value."""
        if depth > _DEEPEST:
            raise ThriftError("it is nested too deeply")
        if kind in _WHOLE_NUMBERS:
            self._skip_number()
        elif kind == BINARY:
            self._skip_binary()
        elif kind == STRUCT:
            while head := self.byte():
                if head < 16:
                    self._skip_number()
                self.skip(head & 15, depth + 1)
        elif kind in (LIST, SET):
            count, item = self.items()
            for _ in range(count):
                self._skip_item(item, depth + 1)
        elif kind == MAP:
            self._skip_map(depth)
        elif kind in (BYTE, DOUBLE):
            self._step(1 if kind == BYTE else 8)
        elif kind not in (BOOL_TRUE, BOOL_FALSE):  # which take no bytes
            raise ThriftError(f"it holds a value of the unknown kind {kind}")

    def _skip_number(self) -> None:
        data, position = self.data, self.position
        try:
            while data[position] > 127:
                position += 1
        except IndexError:
            raise _too_early() from None
        if position - self.position >= _LONGEST_NUMBER:
            raise ThriftError("it holds a number that is too long")
        self.position = position + 1

    def _skip_binary(self) -> int:
        size = self.unsigned()
        begin = self.position
        self._step(size)
        return begin

    def _skip_item(self, kind: int, depth: int) -> None:
        if kind in (BOOL_TRUE, BOOL_FALSE):  # in lists and maps they do
            self._step(1)
        else:
            self.skip(kind, depth)

    def _skip_map(self, depth: int) -> None:
        count = self.unsigned()
        if count > len(self.data) - self.position:
            raise ThriftError("it holds a map that is longer than the footer itself")
        kinds = self.byte() if count else 0
        for _ in range(count):
            self._skip_item(kinds >> 4, depth + 1)
            self._skip_item(kinds & 15, depth + 1)

    def _step(self, num_bytes: int) -> None:
        self.position += num_bytes
        if self.position > len(self.data):
            raise _too_early()


def _too_early() -> ThriftError:
    return ThriftError("it ends too early")


# --- Writing --------------------------------------------------------------------------------------------------


def write_struct(fields: list[tuple[int, int, bytes]]) -> bytes:
    """Return a struct of these fields: number, kind, and the value as it is written; by rising number."""
    out = bytearray()
    last = 0
    for number, kind, value in fields:
        step = number - last
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + write_integer(number)
        out += value
        last = number
    return bytes(out) + b"\0"


def write_list(kind: int, items: list[bytes]) -> bytes:
    """Return a list of items as they are written."""
    count = len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _write_unsigned(count)
    return head + b"".join(items)


def write_integer(value: int) -> bytes:
    """Return a number with its sign."""
    return _write_unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def write_binary(value: bytes) -> bytes:
    """Return a text or other bytes."""
    return _write_unsigned(len(value)) + value


def _write_unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
