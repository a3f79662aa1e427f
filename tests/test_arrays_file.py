"""A file of arrays gives back what was written, and refuses whatever it does not hold."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.arrays_file import MAGIC, ArraysFile, ArraysWriter
from penstock.errors import CorruptShardError

dtypes = st.sampled_from(["|b1", "|i1", "|u1", "<i2", "<u4", "<i8", "<f2", "<f4", "<f8"])


def write(content: dict[str, Any], about: dict[str, Any]) -> bytes:
    out = BytesIO()
    writer = ArraysWriter(out)
    for name, array in content.items():
        writer.add(name, array.dtype.str, array)
    writer.finish(about)
    assert writer.num_bytes == len(out.getvalue())
    return out.getvalue()


@given(
    st.dictionaries(st.text(max_size=5), dtypes.flatmap(lambda kind: arrays.arrays(kind, st.integers(0, 50)))),
    st.dictionaries(st.sampled_from("abc"), st.integers() | st.text(max_size=5)),
)
def test_arrays_come_back(content: dict[str, Any], about: dict[str, Any]) -> None:
    file = ArraysFile(write(content, about), "here")
    assert file.about == about
    assert list(file) == list(content)
    assert len(file) == len(content)
    for name, array in content.items():
        assert file[name].dtype == array.dtype
        assert file[name].tobytes() == array.tobytes()
        assert file.begin_of(name) % 64 == 0


def described(description: Any) -> bytes:
    """A file of 64 bytes of nothing that says this of itself."""
    text = description if isinstance(description, bytes) else json.dumps(description).encode()
    return write({}, {})[:16] + bytes(48) + text + len(text).to_bytes(8, "little") + MAGIC


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        bytes(100),
        write({}, {})[:-1],
        b"x" + write({}, {})[1:],
        write({}, {})[:8] + b"\x02" + write({}, {})[9:],  # another version
        write({}, {})[:-16] + b"\xff" * 8 + MAGIC,
        described(b"{"),
        described(b"[" * 100_000),
        described([]),
        described({}),
        described({"arrays": []}),
        *(
            described({"arrays": {"x": entry}})
            for entry in (
                None,
                [],
                ["<i4", 1],
                ["<i4", 10**6, 0],
                ["<i4", -1, 0],
                ["<i4", 1, -64],
                ["<i4", 1, 3],
                ["<i4", 1, 64 * 10**6],
                ["<i4", 2**62, 0],
                ["|O", 1, 0],
                ["|V8", 1, 0],
                ["<i4", 1.5, 0],
                [4, 1, 0],
            )
        ),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptShardError, match=r"^here is not a file of arrays"):
        ArraysFile(data, "here")
