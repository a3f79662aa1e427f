"""Values of a JSON document, one after the other: the items of an array, or objects, without the whole in memory."""

from __future__ import annotations

import codecs
import json
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from penstock.blocks.block import Block
from penstock.blocks.stage import check_row
from penstock.errors import CorruptShardError, ResumeError
from penstock.formats.content import BEGINNING, dump_frame, frame_before, load_frame
from penstock.formats.lines.cut import BadRow
from penstock.order.state_fields import COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.blocks.stage import State
    from penstock.formats.content import FileContent
    from penstock.formats.files import FilesReading
    from penstock.order.state_fields import Fields
    from penstock.types import Sample

_WHITE = " \t\r\n"
_MARK = "\ufeff"  # that some programs write at the beginning of a file
_VALUES_AT_ONCE = 256
# Text that only breaks off is found wrong at most so far before its end: `-Infinity`, or two escapes for one character.
_LONGEST_TOKEN = 16


def first_character(content: Iterable[bytes]) -> str:
    """Return the first character of a document that is not white space."""
    read = b""
    for chunk in content:
        read += chunk
        text = read.decode("utf-8-sig", "replace").lstrip(_WHITE)
        if text:
            return text[0]
    return ""


def pick_fields(samples: list[Sample], wanted: tuple[str, ...] | None) -> list[Sample]:
    """Return samples with those of their fields that are wanted."""
    if wanted is None:
        return samples
    return [{name: sample[name] for name in wanted if name in sample} for sample in samples]


def parse_objects(rows: Sequence[bytes]) -> list[Any]:
    """Parse all rows as one array, which is quicker than one after the other.

    Rows that are broken may make sense together; those that then have another number, or are no objects, are parsed
    again, each by itself.
    """
    try:
        samples: list[Any] = (json.loads if json_decoder() is None else json_decoder().decode)(
            b"[" + b",".join(rows) + b"]"
        )
    except (ValueError, RecursionError):
        samples = []
    if len(samples) == len(rows) and set(map(type, samples)) <= {dict}:
        return samples
    return list(map(parse_row, rows))


@cache
def json_decoder() -> Any:
    """Return the quick parser, if it is there: what it takes, it takes as the standard library does."""
    try:
        from msgspec.json import Decoder
    except ImportError:
        return None
    return Decoder()


def parse_row(row: bytes) -> Sample:
    """Parse one row, as the standard library does: with NaN, Infinity and lone surrogates."""
    try:
        sample = json.loads(row.decode())
    except RecursionError as error:
        raise BadRow("the line is not JSON that can be read: it is nested too deeply") from error
    except json.JSONDecodeError as error:  # what it says of lines is not meant here: it sees one alone
        raise BadRow(f"the line is not JSON: {error.msg} at character {error.pos + 1}") from error
    except ValueError as error:
        raise BadRow(f"the line is not JSON: {error}") from error
    if type(sample) is not dict:
        raise BadRow(f"the line is not a JSON object, but of type {type(sample).__name__}")
    return sample


class Place(NamedTuple):
    """A place between the values of a document: its byte, the lines and values before it, whether it is in an array."""

    byte: int = 0
    line: int = 0
    row: int = 0
    is_in_array: bool = False


class JsonValues:
    """The values of a document from a place on, some at a time.

    Args:
        content: What the document holds from that place on.
        name: What it is called in errors.
        place: The place.
    """

    def __init__(self, content: Iterator[bytes], name: str, place: Place) -> None:
        self._content, self._name = content, name
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0  # what is decoded, and how much of it was used
        self._byte, self._line, self._row = place.byte, place.line, place.row
        self._counted = 0  # how much of the text the byte and the line are counted to
        self._is_in_array, self._is_after_array = place.is_in_array, False

    @property
    def place(self) -> Place:
        """The place after the values that were given."""
        self._count()
        return Place(self._byte, self._line, self._row, self._is_in_array)

    def take(self, most: int) -> list[Any]:
        """Return the values that are at hand, at most so many; one at least, unless the document ends here."""
        values: list[Any] = []
        while len(values) < most:
            before = self._at
            if not self._go_to_value(may_read=not values) or not self._scan_value(values):
                if values:
                    self._at = before  # the rest is not read yet, or is wrong: those before it are given first
                break
        return values

    def _scan_value(self, values: list[Any]) -> bool:
        """Add the value that begins here; if others were found before it, only if it is at hand."""
        while True:
            try:
                value, self._at = self._scan(self._text, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                if values:
                    return False
                if self._may_go_on(error) and self._read_more():
                    continue
                raise self._wrong(getattr(error, "msg", "it is nested too deeply"), error) from error
            values.append(value)
            self._row += 1
            return True

    def _go_to_value(self, *, may_read: bool) -> bool:
        """Go to where the next value begins; tell whether there is one."""
        needs_comma = self._is_in_array and self._row > 0
        while True:
            character = self._next_character()
            if not character and may_read and self._read_more():
                continue
            is_end = self._is_in_array and character == "]"
            if not character or (is_end and not may_read):
                if may_read and self._is_in_array:
                    raise CorruptShardError(
                        f"{self._name} is cut off in its array, after {self._row} items", path=self._name
                    )
                return False
            if self._is_after_array:
                raise self._wrong("it continues after its array")
            if is_end:
                self._is_in_array, self._is_after_array = False, True
            elif not self._is_in_array and character == "[" and not self._row:
                self._is_in_array = True
            elif needs_comma and character == ",":
                needs_comma = False
            elif needs_comma and may_read:
                raise self._wrong("expecting ',' before it")
            else:
                return not needs_comma
            self._at += 1

    def _next_character(self) -> str:
        if self._text.startswith(_MARK) and not self._at and not self._byte:
            self._at = 1
        while self._at < len(self._text) and self._text[self._at] in _WHITE:
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _read_more(self) -> bool:
        """Have more of the document: twice as much as there is of a value that is not whole; tell if there was any."""
        self._count()
        parts, wanted = [self._text[self._at :]], 2 * (len(self._text) - self._at)
        self._at = self._counted = 0
        is_more = False
        while not is_more or sum(map(len, parts)) < wanted:
            chunk = next(self._content, None)
            try:
                parts.append(self._decode(chunk or b"", final=chunk is None))
            except UnicodeDecodeError as error:
                raise CorruptShardError(f"{self._name} is not UTF-8: {error}", path=self._name) from error
            if chunk is None:
                break
            is_more = True
        self._text = "".join(parts)
        return is_more

    def _count(self) -> None:
        """Know the byte and the line of what was used last."""
        text, begin, end = self._text, self._counted, self._at
        self._byte += end - begin if text.isascii() else len(text[begin:end].encode())
        self._line += text.count("\n", begin, end)
        self._counted = end

    def _may_go_on(self, error: Exception) -> bool:
        """Return whether text may be right if more comes after it: else a fault would have all of a file read."""
        if not isinstance(error, json.JSONDecodeError):
            return False
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _LONGEST_TOKEN

    def _wrong(self, why: str, error: Exception | None = None) -> CorruptShardError:
        at = error.pos if isinstance(error, json.JSONDecodeError) else self._at
        line = self.place.line + self._text.count("\n", self._at, at) + 1
        return CorruptShardError(
            f"{self._name}, line {line}: item {self._row} is not JSON: {why}",
            path=self._name,
            line=line,
            item=self._row,
        )


class ValueBlocks:
    """Samples of a JSON document. The position is a value and the byte where it begins: going back is a seek."""

    state_fields: ClassVar[Fields] = {"row": COUNT, "byte?": COUNT, "line?": COUNT, "is_in_array?": bool}

    def __init__(self, content: FileContent, reading: FilesReading, row: int = 0) -> None:
        self._content, self._name, self._reading = content, content.name, reading
        self._values: JsonValues | None = None
        self._place, self._skip = Place(), row
        self._frame = BEGINNING  # from which to unpack the place
        self._failure: CorruptShardError | None = None  # of the value after those that were given

    def close(self) -> None:
        """Close the document."""
        self._values = None

    def next(self) -> Block:
        """Read the next values."""
        if self._failure is not None:
            raise self._failure
        try:
            return Block(self._read_values())
        except CorruptShardError as error:
            if self._place == Place():  # it was read from its beginning
                raise
            raise ResumeError(f"the state does not fit, or the file is damaged: {error}", **error.facts) from error

    def _read_values(self) -> list[Sample]:
        if self._values is None:
            self._values = JsonValues(self._content.read(self._place.byte, self._frame), self._name, self._place)
        while self._skip:
            passed = len(self._values.take(min(self._skip, _VALUES_AT_ONCE)))
            self._skip -= passed
            if not passed:
                row = self._values.place.row
                check_row(self._name, row + self._skip, row)
        while True:
            first = self._values.place.row
            values = self._values.take(_VALUES_AT_ONCE)
            samples = self._samples(values, first)
            if samples or not values:
                return samples

    def _samples(self, values: list[Any], first: int) -> list[Sample]:
        samples: list[Sample] = []
        for number, value in enumerate(values, first):
            if type(value) is dict:
                samples.append(value)
            elif self._reading.on_error == "raise":
                self._failure = CorruptShardError(
                    f"{self._name}: item {number} is not a JSON object, but of type {type(value).__name__}",
                    path=self._name,
                    item=number,
                )
                if not samples:
                    raise self._failure
                break  # what came before it is given first
        return pick_fields(samples, self._reading.columns)

    def get_state(self) -> State:
        """Return where the next value begins."""
        if self._skip:
            return {"row": self._place.row + self._skip}
        if self._values is None:
            return {**self._place._asdict(), **dump_frame(self._frame)}
        place = self._values.place
        return {**place._asdict(), **dump_frame(frame_before(self._content.frames_from(place.byte), place.byte))}

    def set_state(self, state: State) -> None:
        """Go to a value, and to the byte where it begins if the state tells."""
        self._values = self._failure = None
        self._frame = load_frame(state.get("frame"), self._name)
        is_place = state.get("byte") is not None
        known = {name: state[name] for name in Place._fields if state.get(name) is not None}
        self._place, self._skip = (Place(**known), 0) if is_place else (Place(), state["row"])
