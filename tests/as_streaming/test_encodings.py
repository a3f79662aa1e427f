"""Encodings put into the original's table go into our registry, in place of ours if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock.as_streaming
from penstock.as_streaming.encodings import Encoding
from penstock.as_streaming.encodings import mds_encodings as _encodings
from penstock.errors import BadIndexError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Wide(Encoding):
    """Takes four bytes for a number, and stores the size of each as the original's documentation does."""

    def encode(self, obj: Any) -> bytes:
        return np.int32(obj).tobytes()

    def decode(self, data: bytes) -> Any:
        return int(np.frombuffer(data, np.int32)[0])


class Point(Encoding):
    size = 8

    def encode(self, obj: Any) -> bytes:
        self._validate(obj, tuple)
        return np.array(obj, np.float32).tobytes()

    def decode(self, data: bytes) -> Any:
        return tuple(np.frombuffer(data, np.float32).tolist())


@pytest.fixture(autouse=True)
def clean_table() -> Iterator[None]:
    """Leave the registry as it was."""
    yield
    for name in ("uint8", "point"):
        _encodings.pop(name, None) if name in _encodings._theirs else None


def write(folder: Path, columns: dict[str, str], samples: list[dict[str, Any]]) -> None:
    with penstock.MDSWriter(out=str(folder), columns=columns, size_limit=200) as writer:
        for sample in samples:
            writer.write(sample)


def test_an_encoding_may_take_the_name_of_ours(tmp_path: Path) -> None:
    _encodings["uint8"] = Wide
    assert _encodings["uint8"] is Wide
    samples = [{"x": 1000 + number, "y": number} for number in range(50)]
    write(tmp_path, {"x": "uint8", "y": "int"}, samples)
    dataset = penstock.LocalDataset(str(tmp_path))
    assert dataset.shards[0].column_sizes == [None, 8]
    assert dataset[:] == list(dataset) == samples
    assert [*penstock.StreamingDataset(local=str(tmp_path), batch_size=4)] == samples


def test_it_reads_what_ours_wrote_and_ours_refuses_what_it_wrote(tmp_path: Path) -> None:
    samples = [{"x": number} for number in range(50)]
    write(tmp_path / "ours", {"x": "uint8"}, samples)

    class Narrow(Encoding):
        def encode(self, obj: Any) -> bytes:
            return bytes([obj])

        def decode(self, data: bytes) -> Any:
            return data[0]

    _encodings["uint8"] = Narrow
    write(tmp_path / "theirs", {"x": "uint8"}, samples)
    assert penstock.LocalDataset(str(tmp_path / "ours"))[:] == samples
    del _encodings["uint8"]
    with pytest.raises(BadIndexError, match="has None bytes, but it has 1"):
        penstock.LocalDataset(str(tmp_path / "theirs"))


def test_an_encoding_of_a_new_name_and_a_fixed_size(tmp_path: Path) -> None:
    _encodings["point"] = Point
    assert "point" in _encodings
    samples = [{"at": (float(number), 0.5)} for number in range(20)]
    write(tmp_path, {"at": "point"}, samples)
    assert penstock.LocalDataset(str(tmp_path))[:] == samples
    with pytest.raises(AttributeError, match="expects"):
        write(tmp_path / "wrong", {"at": "point"}, [{"at": 5}])
    del _encodings["point"]
    assert "point" not in _encodings
    with pytest.raises(TypeError, match="unknown column encoding 'point'"):
        penstock.LocalDataset(str(tmp_path))


def test_sizes_that_contradict_each_other_are_still_refused(tmp_path: Path) -> None:
    write(tmp_path, {"x": "uint8"}, [{"x": 1}])

    class TwoBytes(Wide):
        size = 2

    _encodings["uint8"] = TwoBytes
    with pytest.raises(BadIndexError, match="has 1 bytes, but it has 2"):
        penstock.LocalDataset(str(tmp_path))


def test_the_classes_are_ours_under_their_names() -> None:
    import streaming.base.format.mds.encodings as mds

    assert mds.Bytes().encode(b"as it is") == b"as it is"
    assert (mds.UInt16().size, mds.Str().size) == (2, None)
    assert mds.UInt16().decode(mds.UInt16().encode(7)) == 7
    assert mds.mds_decode("json", mds.mds_encode("json", {"a": 1})) == {"a": 1}
    assert mds.get_mds_encoded_size("ndarray:int16:2,3") == 12
    assert mds.is_mds_encoding("jpeg")
    assert not mds.is_mds_encoding("pngg")
    assert not mds.is_mds_encoding_safe("pkl")
    assert mds.get_mds_encodings() == set(_encodings)
    with pytest.raises(KeyError, match="unknown column encoding"):
        _encodings["nothing"]


def test_columns_of_text_formats() -> None:
    import streaming.base.format.json.encodings as json_columns
    import streaming.base.format.xsv.encodings as xsv

    assert json_columns.is_json_encoded("int", 3)
    assert xsv.xsv_decode("float", xsv.xsv_encode("float", 1.5)) == 1.5
    assert xsv.Int().encode(7) == "7"
    with pytest.raises(AttributeError, match="expects"):
        json_columns.Str().is_encoded(5)
    with pytest.raises(TypeError, match="for a text column"):
        xsv.xsv_encode("json", {})
