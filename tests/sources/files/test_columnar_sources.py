"""Sources of Parquet and Arrow files: checksums, lengths, and what a list with a gap is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import ArrowShardedSource, AsyncDataLoader, ParquetShardedSource
from penstock.errors import CorruptShardError
from tests.formats.columnar.test_nodes import write_ipc
from tests.formats.columnar.test_parquet import with_flipped_bit
from tests.formats.in_place import InPlace, MemoryFile
from tests.states.cases import make_data

KINDS = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_flipped_bit_is_an_error_that_names_file_and_row_group(version: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(with_flipped_bit(version))
    samples = iter(ParquetShardedSource(path))
    assert [next(samples)["x"] for _ in range(100)] == list(range(100))
    with pytest.raises(CorruptShardError, match=r"rows\.parquet, row group 1, cannot be read: .*CRC checksum"):
        next(samples)
    assert len(list(ParquetShardedSource(path, columns=["name"]))) == 300


# --- Arrow ----------------------------------------------------------------------------------------------------


def write_arrow(folder: Path, *, is_file: bool) -> str:
    """Three files of 10, 0 and 25 rows, in record batches of 7."""
    for number, rows in enumerate((range(10), range(0), range(100, 125))):
        table = pa.table({"id": pa.array(rows, pa.int64()), "kind": pa.array([f"k{row}" for row in rows], KINDS)})
        (folder / f"{number}.arrow").write_bytes(write_ipc(table, 7, is_file=is_file, compression=None))
    return f"{folder}/*.arrow"


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "stream"])
def test_arrow_knows_its_length(is_file: bool, tmp_path: Path) -> None:
    source = ArrowShardedSource(write_arrow(tmp_path, is_file=is_file))
    assert len(source) == 35 == len(list(source))
    assert source.shard_lengths() == [10, 0, 25]
    assert [source.get_shard_info(name).num_rows for name in source.shard_names] == [10, 0, 25]
    loader = AsyncDataLoader(source, batch_size=4, rank=1, world_size=2, uneven="pad")
    assert len(loader) == 4


def test_a_damaged_batch_is_no_length(tmp_path: Path) -> None:
    write_arrow(tmp_path, is_file=True)
    path = tmp_path / "2.arrow"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CorruptShardError, match=r"2\.arrow cannot be read: it does not end like an Arrow file"):
        len(ArrowShardedSource(f"{tmp_path}/*.arrow"))


OLD_STATES: dict[str, Any] = {
    "plain": (
        {"group": 0, "samples": {"next": 0, "turn": 0, "open": []}, "given": 12},
        {"buffer_rows": None},
        [[25, 26, 29, 30], [33, 35, 37, 38], [40, 42, 44, 47], [48, 51, 53, 54]],
    ),
    "buffer": (
        {
            "time": 9,
            "row": 0,
            "come": 0,
            "samples": {"group": 0, "samples": {"next": 0, "turn": 0, "open": []}},
            "given": 1,
        },
        {"buffer_rows": 9},
        [[11, 25, 0, 54], [21, 15, 33, 17], [58, 12, 14, 51], [59, 56, 19, 8]],
    ),
}


@pytest.mark.parametrize("kind", OLD_STATES)
def test_ranks_that_took_samples_in_turn_end_their_epoch_so(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow files knew no lengths in 0.1.0.dev0, so each rank took every second sample."""
    make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    position, buffer, expected = OLD_STATES[kind]
    order = {"buffer_bytes": None, "interleave": 4, "seed": 0, "rank": 0, "num_ranks": 2, "pads": True, **buffer}
    state = {"kind": "penstock-stream", "version": 2, "epoch": 0, "position": position, "settings": order}
    size = buffer["buffer_rows"]
    source = ArrowShardedSource("p*.rows.arrow")
    loader = AsyncDataLoader(source, batch_size=4, rank=0, world_size=2, uneven="pad", shuffle_buffer_size=size)
    with pytest.warns(UserWarning, match="state is that of rank 0 alone"):
        loader.load_state_dict(state)
    assert [batch["id"].tolist() for batch in loader] == expected
    following = [number for batch in loader for number in batch["id"].tolist()]
    assert len(following) == 28
    assert size or following == list(range(28))  # from the next epoch on, each rank has rows that follow one another


# --- Empty dictionaries ---------------------------------------------------------------------------------------

STRUCT = pa.struct([("k", KINDS), ("n", pa.int8())])


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (STRUCT, [None] * 5),
        (pa.struct([("s", STRUCT), ("l", pa.list_(KINDS, 2))]), [None] * 5),
        (pa.list_(STRUCT, 2), [None, None]),
        (pa.list_(STRUCT), [[None, None], [], None]),
        (pa.large_list(STRUCT), [[None], None]),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "stream"])
def test_an_empty_dictionary_of_nothing_but_nulls(kind: Any, rows: list[Any], is_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"x": pa.array(rows, kind), "id": list(range(len(rows)))})
    path.write_bytes(write_ipc(table, 100, is_file=is_file, compression=None))
    expected = [{"x": value, "id": number} for number, value in enumerate(rows)]
    assert list(ArrowShardedSource(path)) == expected
    assert InPlace("arrow", MemoryFile("a.file", path.read_bytes())).samples() == expected


def test_a_value_that_refers_to_an_empty_dictionary_is_refused(tmp_path: Path) -> None:
    numbers = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array([], pa.string()), safe=False)
    column = pa.StructArray.from_arrays([numbers], names=["k"], mask=pa.array([True, False]))
    path = tmp_path / "a.arrow"
    path.write_bytes(write_ipc(pa.table({"x": column}), 100, is_file=True, compression=None))
    with pytest.raises(CorruptShardError, match=r"a\.arrow, rows 0 to 1, cannot be read: .*out of bounds"):
        list(ArrowShardedSource(path))
    with pytest.raises(CorruptShardError, match="out of bounds"):
        InPlace("arrow", MemoryFile("a.file", path.read_bytes())).samples()


def test_decimals_that_are_none_are_refused() -> None:
    path = Path(__file__).parents[2] / "golden" / "fuzz" / "decimals_of_no_sense.arrow"
    with pytest.raises(CorruptShardError, match=r"decimals_of_no_sense\.arrow cannot be read: .*decimal"):
        list(ArrowShardedSource(path))
