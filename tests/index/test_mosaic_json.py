"""`index.json`: what is written is read, and what cannot be trusted is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadIndexError, CorruptIndexError, DataError, IndexFieldError
from penstock.index.catalog import parse_index
from penstock.index.entry import formats
from penstock.index.model import MAX_SHARD_BYTES, Column, FileInfo, Index, IndexedShard, Part, ShardLayout
from penstock.index.mosaic_json import dump_header, dump_index, dump_layout
from tests.formats.making import attempt

if TYPE_CHECKING:
    from collections.abc import Callable

# --- Round trip ---------------------------------------------------------------------------------------------

names = st.text(min_size=1, max_size=8)
basenames = st.lists(
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=8).filter(
        lambda part: not part.startswith(".")
    ),
    min_size=1,
    max_size=3,
).map("/".join)


SETTINGS = {"mds": (), "json": ("newline",), "csv": ("newline",), "tsv": ("newline",), "xsv": ("newline", "separator")}


def file_infos(least: int, most: int) -> st.SearchStrategy[FileInfo]:
    return st.builds(FileInfo, basenames, st.integers(least, most), st.dictionaries(names, st.text(), max_size=3))


@st.composite
def layouts(draw: st.DrawFn) -> ShardLayout:
    kind = draw(st.sampled_from(["mds", "json", "csv", "tsv", "xsv"]))
    column_names = draw(st.lists(names, unique=True, max_size=4))
    columns = tuple(
        Column(name, draw(names), draw(st.none() | st.integers(0, MAX_SHARD_BYTES)) if kind == "mds" else None)
        for name in column_names
    )
    return ShardLayout(
        format=kind,
        columns=columns,
        compression=draw(st.none() | names),
        hashes=tuple(draw(st.lists(names, max_size=3))),
        size_limit=draw(st.none() | st.integers(0, 2**70)),
        settings={name: draw(names) for name in SETTINGS[kind]},
    )


@st.composite
def shards(draw: st.DrawFn) -> IndexedShard:
    layout = draw(layouts())
    parts = tuple(
        Part(
            draw(file_infos(8, MAX_SHARD_BYTES)),
            None if layout.compression is None else draw(file_infos(0, 2 * MAX_SHARD_BYTES)),
        )
        for _ in range(1 if layout.format == "mds" else 2)
    )
    # The table of offsets, which the last part holds, takes eight bytes and four for each sample.
    return IndexedShard(layout, draw(st.integers(0, parts[-1].raw.num_bytes // 4 - 2)), parts)


@settings(max_examples=60)
@given(st.lists(shards(), max_size=3, unique_by=lambda shard: shard.name), st.booleans())
def test_what_is_written_is_read(infos: list[IndexedShard], is_merged: bool) -> None:
    index = Index(tuple(infos))
    data = dump_index(index, is_merged=is_merged)
    found = parse_index(data, "here")
    assert found == index
    assert dump_index(found, is_merged=is_merged) == data
    assert data.isascii()


@settings(max_examples=10)
@given(st.lists(shards(), max_size=3))
def test_keys_are_sorted(infos: list[IndexedShard]) -> None:
    document = json.loads(dump_index(Index(tuple(infos))))
    for value in (document, *document["shards"], *(json.loads(dump_header(info.layout)) for info in infos)):
        assert list(value) == sorted(value)
    assert list(json.loads(dump_index(Index(()), is_merged=True))) == ["version", "shards"]


@pytest.mark.parametrize("num_others", [1, 2000])
def test_a_shard_that_is_listed_twice_is_told(num_others: int) -> None:
    names = ["shard.00000.mds", *(f"shard.{number:05}.mds" for number in range(num_others))]
    layout = ShardLayout(format="mds", columns=(Column("id", "int", 8),))
    infos = [IndexedShard(layout, 1, (Part(FileInfo(name, 100, {})),)) for name in names]
    with pytest.warns(UserWarning, match=r"there lists the shard shard\.00000\.mds 2 times"):
        assert len(parse_index(dump_index(Index(infos)), "there").shards) == num_others + 1


def test_an_empty_dataset() -> None:
    assert dump_index(Index(())) == b'{"shards": [], "version": 2}'
    assert parse_index(b'{"shards": [], "version": 2}', "here") == Index(())


def test_equal_layouts_become_one_object() -> None:
    entry, other = good_entry(), good_entry()
    other["raw_data"]["basename"] = "shard.00001.mds"
    index = parse_index(dump({"version": 2, "shards": [entry, other]}), "here")
    assert index.shards[0].layout is index.shards[1].layout


def test_sizes_may_be_written_with_units() -> None:
    index = parse_index(dump({"version": 2, "shards": [good_entry() | {"size_limit": "1.5kb"}]}), "here")
    assert index.shards[0].layout.size_limit == 1536


# --- Entries to spoil ---------------------------------------------------------------------------------------


def good_entry(kind: str = "mds") -> dict[str, Any]:
    layout = ShardLayout(
        format=kind,
        columns=(Column("a", "str"), Column("b", "int", 8 if kind == "mds" else None)),
        compression="zstd",
        hashes=("sha1",),
        size_limit=1000,
        settings={name: "|" if name == "separator" else "\n" for name in SETTINGS[kind]},
    )
    entry = dump_layout(layout) | {
        "samples": 3,
        "raw_data": {"basename": f"shard.00000.{kind}", "bytes": 100, "hashes": {"sha1": "00"}},
        "zip_data": {"basename": f"shard.00000.{kind}.zstd", "bytes": 50, "hashes": {"sha1": "11"}},
    }
    if kind != "mds":
        entry["raw_meta"] = {"basename": f"shard.00000.{kind}.meta", "bytes": 100, "hashes": {}}
        entry["zip_meta"] = {"basename": f"shard.00000.{kind}.meta.zstd", "bytes": 50, "hashes": {}}
    return entry


def dump(document: Any) -> bytes:
    return json.dumps(document).encode()


def parse_entry(entry: Any) -> Index:
    return parse_index(dump({"version": 2, "shards": [entry]}), "here")


KINDS = ["mds", "json", "csv", "tsv", "xsv"]


@pytest.mark.parametrize("kind", KINDS)
def test_good_entries_are_good(kind: str) -> None:
    (shard,) = parse_entry(good_entry(kind)).shards
    assert json.loads(dump_index(Index((shard,))))["shards"] == [good_entry(kind)]


# --- Files that are no index --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"\0" * 100,
        b"garbage",
        b'{"version": 2, "shards": [',
        b'{"version": 2, "shards": []',
        b'{"version": 2, "shards": []}}',
        b"\xff\xfe\xfd",
        b'"\xff"',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"version": 2, "shards": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"version": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_empty_and_corrupt_files(data: bytes) -> None:
    with pytest.raises(CorruptIndexError) as caught:
        parse_index(data, "some/index.json")
    assert str(caught.value).startswith("Index file at some/index.json is empty or corrupted")
    assert isinstance(caught.value, json.JSONDecodeError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DataError)


def test_every_truncation_is_corrupt() -> None:
    data = dump_index(parse_entry(good_entry("xsv")))
    for size in range(len(data)):
        with pytest.raises(CorruptIndexError, match=r"^Index file at here is empty or corrupted"):
            parse_index(data[:size], "here")


@pytest.mark.parametrize("document", [None, 2, "x", [], [{"version": 2}], {}, {"shards": []}])
def test_other_documents(document: Any) -> None:
    with pytest.raises(BadIndexError, match="^Index file at here is empty or corrupted") as caught:
        parse_index(dump(document), "here")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("version", [0, 1, 3, 99, -2, "2", None, [2], {"2": 2}, 2.5, 1e300])
def test_other_versions(version: Any) -> None:
    for document in ({"version": version, "shards": []}, {"version": version}):
        with pytest.raises(BadIndexError, match="^Index file at here has version .*reads only version 2") as caught:
            parse_index(dump(document), "here")
        assert isinstance(caught.value, ValueError)
    with pytest.raises(BadIndexError, match=r"^Index file at here: shard 0 has version .*, not 2"):
        parse_entry(good_entry() | {"version": version})


@pytest.mark.parametrize("value", [None, {}, "x", 3])
def test_shards_is_a_list(value: Any) -> None:
    with pytest.raises(IndexFieldError, match="^Index file at here is empty or corrupted: 'shards' is not a list"):
        parse_index(dump({"version": 2, "shards": value}), "here")


# --- Fields -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_missing_field_is_an_error(kind: str) -> None:
    for field in good_entry(kind):
        entry = good_entry(kind)
        del entry[field]
        with pytest.raises(IndexFieldError, match=r"^Index file at here: shard 0 ") as caught:
            parse_entry(entry)
        assert f"'{field}'" in str(caught.value)
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, ValueError)
    for file in [field for field in good_entry(kind) if field.startswith(("raw", "zip"))]:
        for field in ("basename", "bytes", "hashes"):
            entry = good_entry(kind)
            del entry[file][field]
            with pytest.raises(IndexFieldError, match=rf"^Index file at here: shard 0 .*'{field}'"):
                parse_entry(entry)


@pytest.mark.parametrize("kind", KINDS)
def test_extra_fields_are_ignored(kind: str) -> None:
    entry = good_entry(kind) | {"extra": [1, {"deep": None}], "columnz": 3}
    entry["raw_data"]["extra"] = 1
    document = {"version": 2, "shards": [entry], "comment": "x"}
    assert parse_index(dump(document), "here") == parse_entry(good_entry(kind))


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(entry: dict[str, Any]) -> None:
        *outer, last = path.split(".")
        for key in outer:
            entry = entry[key]
        entry[last] = value

    return change


def _each(kind: str, field: str, *values: Any) -> list[tuple[str, str, Any]]:
    return [(kind, field, value) for value in values]


WRONG: list[tuple[str, str, Any]] = [
    *_each("mds", "raw_data", 3, "x", [], True),
    *_each("mds", "zip_data", 3, "x", [], True),
    ("mds", "raw_data", None),
    ("csv", "raw_meta", None),
    ("csv", "zip_meta", 3),
    *_each("mds", "samples", -1, 1.0, "3", None, True, [3], 2**32, 10**30),
    *_each("mds", "raw_data.bytes", -1, 1.0, "3", None, True, 2**32, 2**33, 10**30),
    *_each("mds", "zip_data.bytes", -1, 2**33, None),
    *_each("mds", "raw_data.hashes", None, [], {"sha1": None}, {"sha1": 3}, "x"),
    *_each("mds", "raw_data.basename", None, 3, ["x"]),
    *_each("mds", "column_names", None, "ab", {}, ["a"], ["a", "b", "c"], ["a", "a"], ["a", 3]),
    *_each("mds", "column_names", ["a", None], ["a", ["b"]], ["a", {}]),
    *_each("mds", "column_encodings", None, ["str"], ["str", None], [["str"], "int"]),
    *_each("mds", "column_sizes", None, [None], [None, "8"], [None, -1], [None, 8.0], [None, True]),
    ("mds", "column_sizes", [None, 2**32]),
    ("mds", "column_sizes", [None, [8]]),
    *_each("mds", "compression", 3, ["zstd"], {}, True),
    ("mds", "compression", None),
    ("mds", "zip_data", None),
    *_each("mds", "hashes", None, "sha1", [3], [["sha1"]], {"sha1": 1}),
    *_each("mds", "size_limit", -1, "x", "-1", "1xb", [1], {}, True, "9" * 5000, ""),
    ("mds", "size_limit", "9" * 1_000_001 + "kb"),
    ("mds", "size_limit", float("nan")),
    ("mds", "size_limit", float("inf")),
    *_each("json", "columns", None, [], "x", ["a"], {"a": 3}, {"a": None}),
    *_each("csv", "newline", None, "", 3, ["\n"]),
    *_each("xsv", "separator", None, "", 3, ["|"]),
]


@pytest.mark.parametrize(
    ("kind", "field", "value"), WRONG, ids=[f"{kind}-{field}-{value!r:.30}" for kind, field, value in WRONG]
)
def test_fields_of_the_wrong_type(kind: str, field: str, value: Any) -> None:
    entry = good_entry(kind)
    _set(field, value)(entry)
    with pytest.raises(IndexFieldError, match=r"^Index file at here: shard 0 ") as caught:
        parse_entry(entry)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.facts == {"where": "here", "shard": 0}


@pytest.mark.parametrize("entry", [None, 3, "x", [], [good_entry()]])
def test_an_entry_is_an_object(entry: Any) -> None:
    with pytest.raises(IndexFieldError, match="^Index file at here: shard 0 is not an object"):
        parse_entry(entry)


@pytest.mark.parametrize("kind", ["", "MDS", "orc", None, 3, ["mds"], {"mds": 1}])
def test_unknown_formats_list_the_known_ones(kind: Any) -> None:
    with pytest.raises(BadIndexError, match=r"^Index file at here: shard 0 ") as caught:
        parse_entry(good_entry("csv") | {"format": kind, "column_sizes": [None, None], "columns": {}})
    assert isinstance(caught.value, ValueError)
    if isinstance(kind, str):
        known = ", ".join(formats.names())  # other tests of this process may have registered more
        assert {"csv", "json", "mds", "tsv", "xsv"} <= set(formats.names())
        assert str(caught.value).endswith(
            f"has the unknown format {kind!r}, and penstock knows only {known}."
            " Install or import the package that registers it"
        )


def test_the_bad_shard_is_named() -> None:
    entries = [good_entry(), good_entry(), good_entry() | {"samples": "many"}]
    with pytest.raises(IndexFieldError, match="^Index file at here: shard 2 has 'many' as 'samples'"):
        parse_index(dump({"version": 2, "shards": entries}), "here")


def test_a_shard_cannot_hold_more_samples_than_offsets() -> None:
    """A reader that trusts the number of samples would otherwise make room for four billion of them."""
    for kind, file in (("mds", "raw_data"), ("csv", "raw_meta")):
        entry = good_entry(kind)
        entry[file]["bytes"] = 4 + 4 * (entry["samples"] + 1)
        parse_entry(entry)
        entry[file]["bytes"] -= 1
        with pytest.raises(BadIndexError, match=r"^Index file at here: shard 0 "):
            parse_entry(entry)


def test_an_empty_shard_may_have_no_samples() -> None:
    for kind, file in (("mds", "raw_data"), ("csv", "raw_meta")):
        entry = good_entry(kind) | {"samples": 0}
        entry[file]["bytes"] = 0
        assert parse_entry(entry).num_samples == 0


# --- Anything at all ----------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300)
@given(kind=st.sampled_from(KINDS), changes=st.dictionaries(st.integers(0, 40), anything, min_size=1, max_size=3))
def test_any_value_in_any_field_is_understood_or_refused(kind: str, changes: dict[int, Any]) -> None:
    entry = good_entry(kind)
    fields = [*entry, *(f"{file}.{field}" for file in entry if file[:4] in ("raw_", "zip_") for field in entry[file])]
    for number, value in sorted(changes.items(), reverse=True):  # deep fields first
        field = fields[number % len(fields)]
        if _has(entry, field):
            _set(field, value)(entry)
    index, error = attempt(BadIndexError, lambda: parse_entry(entry))
    if index is None:
        assert str(error).startswith("Index file at here")
    else:
        assert parse_index(dump_index(index), "here") == index


def _has(entry: dict[str, Any], path: str) -> bool:
    file, _, field = path.partition(".")
    return not field or isinstance(entry[file], dict)
