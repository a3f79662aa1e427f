"""What newcomers type wrongly: each ends in an error of ours, or a warning, that says what, where and what to do."""

# mypy: disable-error-code="arg-type, call-arg, call-overload, dict-item, list-item, index, misc, return-value"

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock
from penstock import (
    AsyncDataLoader,
    CSVWriter,
    DatasetConfig,
    JSONWriter,
    LeRobotWriter,
    LocalDataset,
    MDSWriter,
    MixSchedule,
    PackedShardedSource,
    PadCollator,
    Pipeline,
    PipelineConfig,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingLeRobotDataset,
    TokenizedShardedSource,
    TokenizerConfig,
    XSVWriter,
    collate_batch,
    convert,
    create_source,
    encodings,
    from_table,
    merge_index,
    save_dataset,
    tokenize_and_save,
    wrap_hf_dataset,
)
from penstock.cli.main import main
from penstock.errors import PenstockError
from penstock.robots import LeRobotStream
from penstock.sources import (
    ArrowShardedSource,
    CsvShardedSource,
    JsonShardedSource,
    MemoryShardedSource,
    MixedShardedSource,
    ParquetShardedSource,
    ShardedSource,
    TextShardedSource,
    TokenizerManager,
)
from penstock.transforms import ChatTemplate, MapField, RenameFields, SelectFields
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# --- What there is on the disk of the newcomer -----------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two splits, another dataset, ragged lists, lines, a file and an empty folder."""
    folder, before = tmp_path_factory.mktemp("home"), Path.cwd()
    os.chdir(folder)
    _write("data/train", 20, {"id": "int", "text": "str"})
    _write("data/val", 10, {"id": "int", "text": "str"})
    _write("other", 10, {"id": "int"})
    _write("ragged", 20, {"id": "int", "tokens": "ndarray:int32"})
    Path("lines").mkdir()
    for part in range(2):
        rows = (json.dumps({"text": f"row {row}", "n": row}) + "\n" for row in range(10))
        Path(f"lines/{part}.jsonl").write_text("".join(rows))
    Path("table.csv").write_text("a,b\n1,2\n3,x\n")
    Path("afile").write_text("x")
    Path("empty").mkdir()
    try:
        with private_places():
            yield folder
    finally:
        os.chdir(before)


def _write(out: str, count: int, columns: dict[str, str]) -> None:
    with MDSWriter(out=out, columns=columns) as writer:
        for number in range(count):
            tokens = np.arange(number % 5 + 1, dtype=np.int32)
            writer.write({"id": number, "text": f"sample {number}", "tokens": tokens})


def train(**options: Any) -> StreamingDataset:
    return StreamingDataset(**{"local": "data/train", **options})


def loader(*, batch_size: int = 4, of_loader: Any = (), **options: Any) -> StreamingDataLoader:
    return StreamingDataLoader(train(**options), batch_size=batch_size, **dict(of_loader))


def rows() -> MemoryShardedSource:
    return MemoryShardedSource([{"text": f"row {row}", "n": row} for row in range(10)])


def first(samples: Any) -> Any:
    return next(iter(samples))


def written(columns: Any, sample: Any, out: str, kind: Any = MDSWriter) -> None:
    with kind(out=out, columns=columns) as writer:
        writer.write(sample)


def mixed(**options: Any) -> StreamingDataset:
    return StreamingDataset(streams=[Stream(local="data/train"), Stream(local="other")], **options)


def far(**options: Any) -> StreamingDataset:
    return StreamingDataset(download_retry=0, download_timeout=2, **options)


def model_state() -> dict[str, Any]:
    return {"layer.weight": np.zeros((2, 2)), "layer.bias": np.zeros(2)}


def without(module: str, call: Callable[[], Any]) -> Any:
    """Call something as if a library were not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        return call()


def in_job(call: Callable[[], Any], **variables: str) -> Any:
    """Call something with variables of a launcher."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return call()


def write_after_the_end() -> None:
    with MDSWriter(out="ended", columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    writer.write({"x": 2})


def read_before_the_end() -> Any:
    writer = MDSWriter(out="unfinished", columns={"x": "int"})
    writer.write({"x": 1})
    return StreamingDataset(local="unfinished")


def state_of_other_data() -> None:
    batches = loader()
    first(batches)
    others = StreamingDataLoader(StreamingDataset(local="data/val"), batch_size=4)
    others.load_state_dict(batches.state_dict())
    first(others)


def robots(name: str, **options: Any) -> LeRobotWriter:
    return LeRobotWriter(name, **{"fps": 30, "features": {"state": {"dtype": "float32", "shape": (2,)}}, **options})


# --- The table: what is typed, and what the message says: what is wrong, where, and what to do ----------------------


@dataclass
class Mistake:
    """Something that is wrong, and words of the message."""

    name: str
    call: Callable[[], Any]
    what: str
    where: str
    cure: str
    is_warning: bool = False


def _m(name: str, call: Callable[[], Any], what: str, where: str, cure: str) -> Mistake:
    return Mistake(name, call, what, where, cure)


def _warned(name: str, call: Callable[[], Any], what: str, where: str, cure: str) -> Mistake:
    return Mistake(name, call, what, where, cure, is_warning=True)


PATHS = [
    _m(
        "a path without its name",
        lambda: StreamingDataset("data/train"),
        "without a name",
        "StreamingDataset takes",
        "write StreamingDataset(remote=…)",
    ),
    _m(
        "a stream's path without its name",
        lambda: Stream("data/train"),
        "without a name",
        "Stream takes",
        "write Stream(remote=…)",
    ),
    _m(
        "a misspelled path",
        lambda: StreamingDataset(local="data/trian"),
        "there is no folder",
        "data/trian",
        "did you mean 'train'?",
    ),
    _m(
        "a path says what would be read",
        lambda: StreamingDataset(remote="nowhere/at/all"),
        "there is no folder",
        "nowhere/at/all",
        "Parquet, JSON lines, CSV",
    ),
    _m(
        "a path says what is there",
        lambda: LocalDataset("data/trian"),
        "there is no folder",
        "data has train, val",
        "check the path",
    ),
    _m(
        "a wrong split",
        lambda: StreamingDataset(remote="data", split="test"),
        "there is no folder data/test",
        "data has train, val",
        "split=",
    ),
    _m(
        "a wrong split of a LocalDataset",
        lambda: LocalDataset("data", "test"),
        "there is no folder data/test",
        "data has train, val",
        "split=",
    ),
    _m(
        "the folder above the splits",
        lambda: StreamingDataset(remote="data"),
        "No such file",
        "train/index.json",
        "Open the folder that has",
    ),
    _m(
        "the folder above, with LocalDataset",
        lambda: LocalDataset("data"),
        "index.json is missing",
        "train, val",
        "name one of them",
    ),
    _m(
        "a folder without data",
        lambda: StreamingDataset(remote="empty"),
        "there is no dataset",
        "empty",
        "penstock reads folders with",
    ),
    _m("a file as LocalDataset", lambda: LocalDataset("afile"), "is a file", "afile", "penstock reads folders with"),
    _m(
        "a file of no known kind",
        lambda: StreamingDataset(local="afile"),
        "cannot tell the format",
        "afile",
        "pass format=",
    ),
    _m(
        "a glob that matches nothing",
        lambda: StreamingDataset(remote="lines/*.parquet"),
        "no file matches",
        "lines/*.parquet",
        "`**/` also goes into folders",
    ),
    _m(
        "local= is a file",
        lambda: StreamingDataset(remote="data/train", local="afile"),
        "is a file",
        "afile",
        "choose another folder with local=",
    ),
    _m(
        "local= below a file",
        lambda: StreamingDataset(remote="data/train", local="afile/x"),
        "cannot be the folder",
        "afile/x",
        "choose another folder with local=",
    ),
    _m(
        "an unknown scheme",
        lambda: StreamingDataset(remote="s4://bucket/x"),
        "Invalid Cloud provider",
        "s4",
        "Use abfs",
    ),
    _m("a number as path", lambda: StreamingDataset(remote=3), "is not a place", "3", "pass a path, a URL"),
    _m("no path at all", StreamingDataset, "needs streams", "StreamingDataset", "or a remote"),
    _m(
        "an unreachable endpoint",
        lambda: far(
            remote="s3://b/x", storage_options={"endpoint_url": "http://127.0.0.1:9", "key": "a", "secret": "b"}
        ),
        "cannot reach",
        "127.0.0.1:9",
        "check the endpoint",
    ),
    _m(
        "an unreachable server",
        lambda: far(remote="http://127.0.0.1:9/x"),
        "cannot reach",
        "127.0.0.1:9",
        "check the endpoint",
    ),
    _m(
        "a misspelled option of a store",
        lambda: StreamingDataset(remote="s3://b/x", storage_options={"keey": "a"}),
        "no option 'keey'",
        "s3",
        "did you mean 'key'?",
    ),
    _m(
        "options that are no dict",
        lambda: StreamingDataset(remote="s3://b/x", storage_options="key"),
        "must be a dict",
        "storage_options",
        "dict",
    ),
    _m("data that are not whole yet", read_before_the_end, "there is no dataset", "unfinished", "when it finishes"),
]

DATASETS = [
    _m(
        "a misspelled argument",
        lambda: train(suffle=True),
        "no argument 'suffle'",
        "StreamingDataset",
        "did you mean 'shuffle'?",
    ),
    _m(
        "one stream, no list",
        lambda: StreamingDataset(streams=Stream(local="data/train")),
        "takes a list",
        "streams=",
        "write streams=[Stream(…), …]",
    ),
    _m(
        "paths as streams",
        lambda: StreamingDataset(streams=["data/train"]),
        "holds a str",
        "streams=",
        "write Stream(remote=…)",
    ),
    _m(
        "streams and a path",
        lambda: StreamingDataset(streams=[Stream(local="other")], remote="data/val"),
        "exclude each other",
        "streams= and remote=",
        "each stream has its own",
    ),
    _m(
        "a misspelled argument of a stream",
        lambda: Stream(remote="a", chose=3),
        "no argument 'chose'",
        "Stream",
        "did you mean 'choose'?",
    ),
    _m(
        "two weights",
        lambda: Stream(local="other", proportion=1, repeat=2),
        "only one weight",
        "proportion and repeat",
        "leave out all but one",
    ),
    _m(
        "a weight for one of two",
        lambda: StreamingDataset(streams=[Stream(local="other", proportion=1), Stream(local="data/val")]),
        "some do not",
        "proportion",
        "give every stream",
    ),
    _m(
        "a negative weight",
        lambda: Stream(local="other", proportion=-1),
        "is not a weight",
        "proportion=-1",
        "0 or more",
    ),
    _m(
        "files in two places",
        lambda: Stream(remote=["s3://a/x", "s3://b/y"]),
        "several places",
        "s3://a/ and s3://b/",
        "make a stream for each",
    ),
    _m(
        "a split that is no name",
        lambda: Stream(remote="data", split=3),
        "is not a name",
        "split=3",
        "pass the name of a folder",
    ),
    _m(
        "a timeout of nothing",
        lambda: Stream(remote="a", download_timeout=0),
        "not a valid timeout",
        "download_timeout=0",
        "seconds above 0",
    ),
    _m("a word for a bool", lambda: train(shuffle="yes"), "is not a bool", "shuffle='yes'", "use True or False"),
    _m(
        "a text as batch size", lambda: train(batch_size="32"), "is not a whole number", "batch_size='32'", "use an int"
    ),
    _m(
        "a size without a unit that is known",
        lambda: train(cache_limit="10 apples"),
        "unknown unit",
        "10 apples",
        "use one of b, kb",
    ),
    _m("a count in words", lambda: train(epoch_size="many"), "is not a count", "many", "write it like 1000"),
    _m("an epoch of nothing", lambda: train(epoch_size=0), "leaves nothing", "epoch_size=0", "set it to 1 or more"),
    _m("an unknown column", lambda: train(columns=["txet"]), "no column 'txet'", "data/train", "did you mean 'text'?"),
    _m("one column, no list", lambda: train(columns="text"), "is a string", "columns='text'", "pass a list"),
    _m("an unknown shuffle", lambda: train(shuffle_algo="py3"), "unknown shuffle_algo", "py3", "use one of"),
    _m("an unknown order", lambda: train(order="randm"), "unknown order", "randm", "use one of"),
    _m("an unknown on_error", lambda: train(on_error="ignore"), "unknown on_error", "ignore", "use 'raise' or 'skip'"),
    _m("an unknown decoder", lambda: train(image_decoder="np"), "unknown image decoder", "np", "use one of pil"),
    _m("an unknown hash", lambda: train(validate_hash="md6"), "unknown hash", "md6", "use one of"),
    _m(
        "an unknown format",
        lambda: StreamingDataset(remote="lines", format="json"),
        "unknown format",
        "json",
        "use one of arrow, csv, jsonl",
    ),
    _m(
        "the format of other files",
        lambda: StreamingDataset(remote="data/train", format="csv"),
        "is a dataset with an index.json",
        "data/train",
        "leave out format=",
    ),
    _m(
        "a subset of a folder",
        lambda: StreamingDataset(remote="data/train", subset="en"),
        "does not apply",
        "subset=",
        "leave it out",
    ),
    _m(
        "types of an unknown column",
        lambda: StreamingDataset(remote="table.csv", types={"z": "int"}),
        "names column 'z'",
        "table.csv",
        "has the columns a, b",
    ),
    _m(
        "types of no kind",
        lambda: StreamingDataset(remote="table.csv", types={"b": "integer"}),
        "unknown type 'integer'",
        "column 'b'",
        "use one of str, int",
    ),
    _m(
        "types of lines",
        lambda: StreamingDataset(remote="lines", types={"n": "int"}),
        "does not apply",
        "types=",
        "leave it out",
    ),
    _m(
        "a value of another type",
        lambda: list(CsvShardedSource("table.csv", types={"b": "int"})),
        "not of type int",
        "table.csv, line 3",
        "column 'b'",
    ),
    _m(
        "a schedule for too many streams",
        lambda: train(schedule=[(0, [0.5, 0.5])]),
        "2 proportions",
        "1 streams",
        "give one proportion per stream",
    ),
    _m(
        "a schedule that is none",
        lambda: train(schedule=0.5),
        "is not a schedule",
        "schedule=0.5",
        "pass a MixSchedule",
    ),
    _m(
        "positions of a schedule that fall",
        lambda: MixSchedule(positions=[10, 0], proportions=[[1, 0], [0, 1]]),
        "must start with 0",
        "(10, 0)",
        "and increase",
    ),
    _m(
        "a schedule without names",
        lambda: MixSchedule([(0, [1.0])]),
        "takes no argument without a name",
        "MixSchedule",
        "positions=…",
    ),
    _m("a number past the end", lambda: train()[20], "out of range", "sample 20", "has 20 samples"),
    _m("a column as number", lambda: train()["text"], "not with 'text'", "index a dataset", "with a whole number"),
    _m(
        "a fraction as number",
        lambda: LocalDataset("data/train")[1.5],
        "not with 1.5",
        "index a dataset",
        "with a whole number",
    ),
    _m(
        "a column that one stream lacks",
        lambda: mixed(columns=["id", "text"]),
        "no column 'text'",
        "other",
        "the dataset has id",
    ),
    _m(
        "columns of two kinds of streams",
        lambda: list(StreamingDataLoader(mixed(columnar=True), batch_size=4)),
        "different columns",
        "shards",
        "columns=['id']",
    ),
    _m(
        "a transform that is none",
        lambda: train(sample_transform="lower"),
        "is not callable",
        "sample_transform='lower'",
        "pass a function",
    ),
    _m(
        "a transform that returns nothing",
        lambda: first(loader(sample_transform=lambda _: None)),
        "returned None",
        "sample 0 (stream 0, data/train, shard.00000.mds, row 0)",
        "return the sample",
    ),
    _m(
        "a transform of columns that returns nothing",
        lambda: first(loader(columnar=True, batch_transform=lambda _: None)),
        "returned a NoneType",
        "sample 0",
        "return a dict of columns",
    ),
    _m(
        "a transform that fails",
        lambda: first(train(sample_transform=lambda sample: sample["txt"])),
        "KeyError: 'txt'",
        "row 0",
        "sample_transform failed",
    ),
    _m(
        "a transform of columns for samples",
        lambda: first(train(batch_transform=dict)),
        "works on columns",
        "batch_transform=",
        "set columnar=True",
    ),
    _m(
        "a model's state",
        lambda: train().load_state_dict(model_state()),
        "the state of a model",
        "StreamingDataset or its loader",
        "its own state_dict()",
    ),
    _m(
        "an optimizer's state",
        lambda: loader().load_state_dict({"state": {}, "param_groups": []}),
        "the state of an optimizer",
        "StreamingDataset or its loader",
        "its own state_dict()",
    ),
    _m(
        "the path of a state",
        lambda: loader().load_state_dict("state.json"),
        "no state but a str",
        "StreamingDataset or its loader",
        "its own state_dict()",
    ),
    _m("the state of other data", state_of_other_data, "samples", "the state", "20"),
    _m("an epoch before the first", lambda: train().set_epoch(-1), "does not exist", "epoch -1", "count from 0"),
    _m("a pin past the end", lambda: train().pin([99]), "out of range", "sample 99", "has 20 samples"),
    _m(
        "an object that is not there",
        lambda: train().fetch("clip.mp4"),
        "is missing",
        "data/train/clip.mp4",
        "is not a file",
    ),
]

WORLDS = [
    _m(
        "a rank without a world",
        lambda: train(rank=3),
        "belong together",
        "rank and world_size",
        "pass both or neither",
    ),
    _m(
        "a rank past the world",
        lambda: train(rank=3, world_size=2, num_nodes=1),
        "does not exist",
        "rank 3 of 2",
        "count from 0",
    ),
    _m(
        "ranks that nodes cannot share",
        lambda: train(rank=0, world_size=3, num_nodes=2),
        "cannot be spread evenly",
        "3 ranks",
        "the same number of ranks",
    ),
    _m(
        "a rank in words",
        lambda: in_job(train, RANK="first", WORLD_SIZE="2"),
        "is not a whole number",
        "RANK='first'",
        "environment variable",
    ),
    _m(
        "a rank of the environment past the world",
        lambda: in_job(train, RANK="5", WORLD_SIZE="2"),
        "does not exist",
        "rank 5 of 2",
        "count from 0",
    ),
    _m(
        "a rank past the world of a source",
        lambda: AsyncDataLoader(rows(), 4, rank=3, world_size=2),
        "does not exist",
        "rank 3 of 2",
        "count from 0",
    ),
]

LOADERS = [
    _m(
        "a loader of a path",
        lambda: StreamingDataLoader("data/train"),
        "is no dataset",
        "'data/train'",
        "pass StreamingDataset(remote=…)",
    ),
    _m(
        "a loader of a class",
        lambda: StreamingDataLoader(StreamingDataset),
        "is no dataset",
        "StreamingDataset",
        "pass StreamingDataset(remote=…)",
    ),
    _m(
        "a loader of nothing",
        lambda: StreamingDataLoader(None),
        "is no dataset",
        "None",
        "pass StreamingDataset(remote=…)",
    ),
    _m(
        "a loader of a source",
        lambda: StreamingDataLoader(rows(), batch_size=2),
        "this is a source",
        "StreamingDataLoader",
        "AsyncDataLoader",
    ),
    _m(
        "shuffling in the loader",
        lambda: StreamingDataLoader(train(), batch_size=2, shuffle=True),
        "does not accept shuffle=",
        "StreamingDataLoader",
        "pass shuffle=True to the dataset",
    ),
    _m(
        "a misspelled argument of the loader",
        lambda: loader(of_loader={"num_worker": 2}),
        "no argument 'num_worker'",
        "StreamingDataLoader",
        "did you mean 'num_workers'?",
    ),
    _m(
        "no batch size",
        lambda: StreamingDataLoader(train()),
        "batch size",
        "neither the loader nor the dataset",
        "pass batch_size=",
    ),
    _m("a batch of nothing", lambda: loader(batch_size=0), "is too small", "batch_size=0", "use 1 or more"),
    _m(
        "lists of several lengths",
        lambda: first(StreamingDataLoader(StreamingDataset(local="ragged"), batch_size=4)),
        "several shapes",
        "column 'tokens'",
        "PadCollator",
    ),
    _m(
        "samples that lack a column",
        lambda: list(StreamingDataLoader(mixed(shuffle=True), batch_size=20)),
        "have no 'text'",
        "other",
        "with columns=",
    ),
    _m(
        "None in a column",
        lambda: first(loader(sample_transform=lambda sample: {**sample, "id": None})),
        "has None in it",
        "column 'id'",
        "sample_transform=",
    ),
    _warned(
        "a batch larger than the data",
        lambda: list(loader(batch_size=100, of_loader={"drop_last": True})),
        "gives no batch",
        "20 samples",
        "Lower batch_size",
    ),
    _warned(
        "a batch larger than a source",
        lambda: list(AsyncDataLoader(rows(), 100)),
        "gives no batch",
        "batch_size=100",
        "Lower batch_size",
    ),
    _m(
        "a function that would not be called",
        lambda: StreamingDataLoader(train(), batch_size=2, columnar=True, collate_fn=list),
        "never called",
        "collate_fn=",
        "leave out",
    ),
    _m(
        "columns of a list",
        lambda: StreamingDataLoader([1, 2], batch_size=2, columnar=True),
        "needs a StreamingDataset",
        "columnar=True",
        "not a list",
    ),
    _m(
        "an epoch of a list",
        lambda: StreamingDataLoader([1, 2], batch_size=2).set_epoch(1),
        "reads a list",
        "this loader",
        "StreamingDataset",
    ),
    _m(
        "an async loader of a path",
        lambda: AsyncDataLoader("data/train", 4),
        "is a str",
        "source",
        "pass a ShardedSource",
    ),
    _m(
        "an async loader with a text as batch size",
        lambda: AsyncDataLoader(rows(), "4"),
        "is not a whole number",
        "batch_size='4'",
        "use an int",
    ),
    _m(
        "an unknown output",
        lambda: AsyncDataLoader(rows(), 4, output="tf"),
        "is unknown",
        "output='tf'",
        "use one of numpy",
    ),
    _m(
        "a model's state for a source",
        lambda: AsyncDataLoader(rows(), 4).load_state_dict(model_state()),
        "the state of a model",
        "an AsyncDataLoader over a source",
        "its own state_dict()",
    ),
    _m("padding to nothing", lambda: PadCollator(max_length=0), "is too small", "max_length=0", "use 1 or more"),
    _m(
        "padding to less than there is",
        lambda: PadCollator(max_length=1)([{"a": [1, 2]}]),
        "has 2 values",
        "'a'",
        "max_length=1",
    ),
    _m("samples that differ", lambda: collate_batch([{"a": 1}, {"b": 1}]), "some do not", "a, b", "select the fields"),
]

WRITERS = [
    _m("no place to write to", lambda: MDSWriter(columns={"x": "int"}), "needs out=", "MDSWriter", "out="),
    _m(
        "a place with data",
        lambda: MDSWriter(out="data/train", columns={"x": "int"}),
        "not empty",
        "data/train",
        "Pass exist_ok=True",
    ),
    _m(
        "a file as place",
        lambda: MDSWriter(out="afile", columns={"x": "int"}),
        "File exists",
        "afile",
        "choose another place",
    ),
    _m(
        "an unknown encoding",
        lambda: MDSWriter(out="w", columns={"x": "integer"}),
        "unknown column encoding",
        "integer",
        "use one of",
    ),
    _m("a type as encoding", lambda: MDSWriter(out="w", columns={"x": int}), "must be strings", "'x'", "strings"),
    _m("columns that are no dict", lambda: MDSWriter(out="w", columns=["x"]), "must be a dict", "columns", "dict"),
    _m(
        "an unknown compression",
        lambda: MDSWriter(out="w", columns={"x": "int"}, compression="zip"),
        "unknown compression",
        "zip",
        "use one of",
    ),
    _m(
        "a size that is none",
        lambda: MDSWriter(out="w", columns={"x": "int"}, size_limit="big"),
        "is not a size",
        "big",
        "write it like",
    ),
    _m(
        "an unknown argument of a writer",
        lambda: MDSWriter(out="w", columns={"x": "int"}, separator=","),
        "has no argument",
        "MDSWriter",
        "separator",
    ),
    _m(
        "a sample that lacks a column",
        lambda: written({"x": "int", "y": "int"}, {"x": 1}, "w1"),
        "is missing",
        "sample 0: column 'y'",
        "has 'x'",
    ),
    _m(
        "a value of another kind",
        lambda: written({"x": "int"}, {"x": "1"}, "w2"),
        "got str",
        "sample 0: column 'x'",
        "expects an int",
    ),
    _m(
        "a number that is too large",
        lambda: written({"x": "uint8"}, {"x": 300}, "w3"),
        "cannot hold 300",
        "sample 0: column 'x'",
        "from 0 to 255",
    ),
    _m("a list as sample", lambda: written({"x": "int"}, [1], "w4"), "got list", "sample 0", "must be a dict"),
    _m(
        "a value that tells no encoding",
        lambda: written(None, {"x": object()}, "w5"),
        "cannot guess",
        "column 'x'",
        "pass columns=",
    ),
    _m("writing after the end", write_after_the_end, "has finished", "this writer", "append=True"),
    _m(
        "a separator in a text",
        lambda: written({"x": "str"}, {"x": "a,b"}, "w6", CSVWriter),
        "contains the separator",
        "sample 0: column 'x'",
        "use JSONWriter",
    ),
    _m(
        "arrays as text",
        lambda: JSONWriter(out="w7", columns={"x": "ndarray"}),
        "unknown column encoding",
        "ndarray",
        "text formats have",
    ),
    _m(
        "no separator", lambda: XSVWriter(out="w8", columns={"x": "str"}), "needs separator=", "XSVWriter", "separator="
    ),
    _m("nothing to merge", lambda: merge_index("empty"), "no index.json", "empty", "name the folder"),
    _m(
        "a name of an encoding that is taken",
        lambda: encodings.register("int")(object),
        "already registered",
        "'int'",
        "encoding",
    ),
]

SOURCES = [
    _m(
        "files that are not there",
        lambda: ParquetShardedSource("nowhere/*.parquet"),
        "no file matches",
        "nowhere/*.parquet",
        "`**/`",
    ),
    _m(
        "lines that are not there",
        lambda: JsonShardedSource("nowhere.jsonl"),
        "no file or folder",
        "nowhere.jsonl",
        "there is",
    ),
    _m(
        "text that is not there",
        lambda: TextShardedSource("nowhere.txt"),
        "no file or folder",
        "nowhere.txt",
        "there is",
    ),
    _m(
        "lines as Parquet",
        lambda: first(ParquetShardedSource("lines/0.jsonl")),
        "cannot be read",
        "lines/0.jsonl",
        "not a parquet file",
    ),
    _m(
        "a table as lines of JSON",
        lambda: first(JsonShardedSource("table.csv")),
        "is not JSON",
        "table.csv, line 1",
        "character 1",
    ),
    _m("a table as Arrow", lambda: first(ArrowShardedSource("table.csv")), "cannot be read", "table.csv", "bytes"),
    _m(
        "a misspelled argument of files",
        lambda: JsonShardedSource("lines/*.jsonl", colums=["n"]),
        "no argument 'colums'",
        "JsonShardedSource",
        "did you mean 'columns'?",
    ),
    _m("a number as list", lambda: MemoryShardedSource(3), "not int", "samples=", "list of samples"),
    _m("numbers as samples", lambda: MemoryShardedSource([1, 2]), "is 1", "samples=", "list of dicts"),
    _m("a number as dataset", lambda: wrap_hf_dataset(3), "cannot read", "int", "pass a dataset"),
    _m("a function that is none", lambda: rows().map("lower"), "is not callable", "fn='lower'", "pass a function"),
    _m("a condition that is none", lambda: rows().filter(3), "is not callable", "predicate=3", "pass a function"),
    _m(
        "a map that returns nothing",
        lambda: first(rows().map(lambda _: None)),
        "returned None",
        "row 0 of memory:0",
        "use filter",
    ),
    _m(
        "a map that fails",
        lambda: first(rows().map(lambda sample: sample["txt"])),
        "KeyError: 'txt'",
        "row 0 of memory:0",
        "transform failed",
    ),
    _m(
        "a field that is not there",
        lambda: first(rows().transform(SelectFields(["txt"]))),
        "no field 'txt'",
        "row 0 of memory:0",
        "it has text, n",
    ),
    _m("a new name without the old one", lambda: RenameFields("text"), "must be a dict", "mapping", "dict"),
    _m(
        "a field's function that is none",
        lambda: MapField("text", "lower"),
        "is not callable",
        "fn='lower'",
        "pass a function",
    ),
    _m(
        "a length that is not known",
        lambda: len(rows().filter(bool)),
        "does not know",
        "TransformedShardedSource",
        "count as you read",
    ),
    _m(
        "a shard that is not there",
        lambda: rows().open_shard("part-0"),
        "no shard 'part-0'",
        "the source",
        "the first is 'memory:0'",
    ),
    _m(
        "a number of a shard past the end",
        lambda: rows().iter_shards([7]),
        "out of range",
        "shard 7",
        "numbered from 0",
    ),
    _m(
        "a row past the end",
        lambda: rows().open_shard_at_row("memory:0", 50),
        "does not exist",
        "row 50",
        "it has 10 rows",
    ),
    _m("a mix of a list", lambda: MixedShardedSource([rows()]), "must be a dict", "sources=", "names and sources"),
    _m("a mix of a path", lambda: MixedShardedSource({"a": "lines"}), "is a str", "source", "pass a ShardedSource"),
    _m(
        "a weight that is missing",
        lambda: MixedShardedSource({"a": rows(), "b": rows()}, {"a": 1.0}),
        "do not match",
        "a, b",
        "b missing",
    ),
    _m(
        "a tokenizer's file that is not there",
        lambda: TokenizerManager().get_tokenizer("tok.json"),
        "no tokenizer",
        "tok.json",
        "pass a tokenizer.json",
    ),
    _m(
        "a tokenizer below here that is not there",
        lambda: TokenizerManager().get_tokenizer("./gpt"),
        "no tokenizer",
        "./gpt",
        "pass a tokenizer.json",
    ),
    _m(
        "a tokenizer that is none",
        lambda: first(TokenizedShardedSource(rows(), 3, TokenizerConfig("x"))),
        "is not a tokenizer",
        "memory:0",
        "pass one of",
    ),
    _m(
        "a text field of another name",
        lambda: TokenizedShardedSource(rows(), None, "x", text_field="text"),
        "no argument 'text_field'",
        "TokenizedShardedSource",
        "did you mean 'content_field'?",
    ),
    _m("no tokens at all", lambda: TokenizerConfig("x", max_length=0), "is too small", "max_length=0", "use 1 or more"),
    _m(
        "packing without an end",
        lambda: PackedShardedSource(rows(), 8),
        "needs eos_token_id=",
        "PackedShardedSource",
        "eos_token_id=",
    ),
    _m(
        "packing texts",
        lambda: first(PackedShardedSource(rows(), 8, 1)),
        "no 'input_ids'",
        "row 0 of memory:0",
        "it has text, n",
    ),
    _m(
        "a packer that is not known",
        lambda: PackedShardedSource(rows(), 8, 1, strategy="best"),
        "is unknown",
        "strategy='best'",
        "use 'greedy'",
    ),
]

PIPELINES = [
    _m(
        "stages in another order",
        lambda: Pipeline.from_config({"datasets": [{"data_files": "lines/*.jsonl"}]}).tokenize(),
        "wrong place",
        "tokenize()",
        "write .source().tokenize()",
    ),
    _m("no configuration", Pipeline, "needs config=", "Pipeline", "config="),
    _m(
        "a configuration that is not there",
        lambda: Pipeline.from_config("nowhere.yaml"),
        "cannot be read",
        "nowhere.yaml",
        "No such file",
    ),
    _m(
        "a field of another name",
        lambda: PipelineConfig.from_dict({"datsets": []}),
        "no field 'datsets'",
        "PipelineConfig",
        "do you mean 'datasets'?",
    ),
    _m("no datasets", PipelineConfig, "needs datasets=", "PipelineConfig", "datasets="),
    _m(
        "a misspelled argument of a dataset",
        lambda: DatasetConfig(data_files="x", content_fild="y"),
        "no argument 'content_fild'",
        "DatasetConfig",
        "did you mean 'content_field'?",
    ),
    _m(
        "a type that is not known",
        lambda: DatasetConfig(data_files="x", type="xml"),
        "is unknown",
        "type='xml'",
        "use one of json",
    ),
    _m("a path as configuration", lambda: create_source("lines/*.jsonl"), "is a str", "config", "pass DatasetConfig"),
    _m(
        "a save over data", lambda: save_dataset(rows(), "data/train"), "not empty", "data/train", "pass overwrite=True"
    ),
    _m(
        "a save in no format",
        lambda: save_dataset(rows(), "sv", format="xml"),
        "is unknown",
        "format='xml'",
        "use one of parquet",
    ),
    _m("a save of a list", lambda: save_dataset([1], "sv"), "is a list", "source", "save_iterator"),
    _m(
        "tokens of files that are not there",
        lambda: tokenize_and_save("nowhere/*.jsonl", "tok.json", "tk"),
        "no file matches",
        "nowhere/*.jsonl",
        "`**/`",
    ),
    _m(
        "a conversion of nothing",
        lambda: convert("nowhere/*.jsonl", "cv"),
        "no file matches",
        "nowhere/*.jsonl",
        "`**/`",
    ),
    _m(
        "a conversion over data",
        lambda: convert("lines/*.jsonl", "data/train"),
        "not empty",
        "data/train",
        "choose another place",
    ),
    _m("a conversion of numbers", lambda: convert([1, 2], "cv"), "holds a int", "inputs=", "each a dict"),
    _m(
        "an engine that is not known",
        lambda: convert("lines/*.jsonl", "cv", engine="spork"),
        "is unknown",
        "engine='spork'",
        "use 'local'",
    ),
    _m(
        "shares that are more than all",
        lambda: convert("lines/*.jsonl", "cv", splits={"a": 2.0}),
        "add up to 2",
        "splits=",
        "not to 1",
    ),
    _m(
        "a template that ends too early",
        lambda: ChatTemplate("{{ x").apply_chat_template([{"role": "user", "content": "a"}]),
        "is not Jinja",
        "line 1 of the chat template",
        "unexpected end of template",
    ),
]

ROBOTS = [
    _m(
        "a robot dataset that is none",
        lambda: StreamingLeRobotDataset("x/y", root="data/train"),
        "is no LeRobot dataset",
        "data/train",
        "pass root=",
    ),
    _warned(
        "a folder as name of the Hub",
        lambda: LeRobotStream("data/train"),
        "is looked up on the Hugging Face Hub",
        "'data/train'",
        "pass root=",
    ),
    _m(
        "a misspelled argument of robots",
        lambda: StreamingLeRobotDataset("x/y", root="data/train", delta_timestamp={}),
        "no argument 'delta_timestamp'",
        "StreamingLeRobotDataset",
        "did you mean 'delta_timestamps'?",
    ),
    _m("no frames a second", lambda: robots("r1", fps=0), "must be a positive number", "fps=0", "positive"),
    _m("no features", lambda: robots("r2", features={}), "is empty", "features=", "name at least one feature"),
    _m(
        "a feature of no kind",
        lambda: robots("r3", features={"a": {"dtype": "float33", "shape": (2,)}}),
        "the dtype 'float33'",
        "feature 'a'",
        "use one of float16",
    ),
    _m(
        "an episode without frames",
        lambda: robots("r4").save_episode(),
        "no frames",
        "episode 0",
        "before save_episode()",
    ),
    _m(
        "a frame without a task",
        lambda: robots("r5").add_frame({"state": np.zeros(2, np.float32)}),
        "needs a task",
        "frame 0 of episode 0",
        "a string",
    ),
    _m(
        "a frame of another shape",
        lambda: robots("r6").add_frame({"state": np.zeros(3, np.float32), "task": "t"}),
        "shape [3]",
        "frame 0 of episode 0: 'state'",
        "shape [2]",
    ),
]

EXTRAS = [
    _m(
        "no torch",
        lambda: without("torch", lambda: AsyncDataLoader(rows(), 4, output="torch")),
        "needs torch",
        "output='torch'",
        "run pip install '",
    ),
    _m(
        "no JAX",
        lambda: without("jax", lambda: AsyncDataLoader(rows(), 4, output="jax")),
        "needs jax",
        "output='jax'",
        "run pip install '",
    ),
    _m(
        "no pyarrow",
        lambda: without("pyarrow.parquet", lambda: first(ParquetShardedSource("lines/0.jsonl"))),
        "needs pyarrow",
        "reading Parquet files",
        "run pip install '",
    ),
    _m(
        "no tokenizers",
        lambda: without("tokenizers", lambda: TokenizerManager().get_tokenizer("gpt2")),
        "needs tokenizers",
        "tokenizing",
        "run pip install '",
    ),
    _m(
        "no YAML",
        lambda: without("yaml", lambda: Pipeline.from_config("settings.yaml")),
        "needs yaml",
        "YAML",
        "run pip install '",
    ),
]

TABLES = [
    _m("a list as table", lambda: from_table([1]), "is no table", "list", "pass one of pandas"),
    _m("counting nothing", lambda: train().stats_of(sample=0), "is too small", "sample=0", "use 1 or more"),
    _m("a table of a row past the end", lambda: train().to_arrow([20]), "out of range", "sample 20", "has 20 samples"),
    _m("no pandas", lambda: without("pandas", train().to_pandas), "needs pandas", "to_pandas()", "run pip install '"),
]

CACHE = [
    _m(
        "a dataset that is not cached",
        lambda: penstock.clear_cache("s3://nowhere/x"),
        "is not in",
        "s3://nowhere/x",
        "cache",
    ),
    _m("how much may stay, in words", lambda: penstock.prune_cache("few"), "is not a size", "few", "write it like"),
    _m(
        "to warm what is not there",
        lambda: penstock.warm_cache("data/test"),
        "there is no folder",
        "data/test",
        "check the path",
    ),
    _m("a file as cache", lambda: penstock.list_cache(["afile"]), "is not a folder", "afile", "passed as `local`"),
]

MISTAKES = PATHS + DATASETS + WORLDS + LOADERS + WRITERS + SOURCES + PIPELINES + ROBOTS + EXTRAS + TABLES + CACHE


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_says_what_where_and_what_to_do(mistake: Mistake) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            mistake.call()
            message = ""
        except PenstockError as error:
            message = str(error)
    if mistake.is_warning:
        message = "\n".join(str(each.message) for each in warned)
    for part in (mistake.what, mistake.where, mistake.cure):
        assert part in message, f"{message!r} does not say {part!r}"


COMMANDS = [
    ("insepct data/train", "invalid choice: 'insepct'", "argument COMMAND", "choose from"),
    ("inspect", "required", "penstock inspect", "dataset"),
    ("inspect data/trian", "there is no folder", "data/trian", "did you mean 'train'?"),
    ("inspect lines --format xml", "unknown format", "'xml'", "use one of arrow"),
    ("head data --split test", "there is no folder data/test", "data has train, val", "--split"),
    ("head data/train -n -1", "is too small", "-n=-1", "use 0 or more"),
    ("head data/train --columns txet", "no column 'txet'", "data/train", "did you mean 'text'?"),
    ("stats nowhere", "there is no folder", "nowhere", "check the path"),
    ("verify nowhere", "there is no folder", "nowhere", "check the path"),
    ("index nowhere", "there is no folder", "nowhere", "check the path"),
    ("merge empty", "no index.json", "empty", "name the folder"),
    ("convert lines/*.jsonl", "name the inputs", "penstock convert", "where the dataset is to be made"),
    ("convert nowhere cv", "there is no dataset", "nowhere", "penstock reads folders with"),
    ("convert lines/*.jsonl cv --columns text", "write name=encoding", "--columns text", "with commas"),
    ("convert lines/*.jsonl cv --splits train", "write shares as", "--splits train", "train=0.98"),
    ("convert lines/*.jsonl cv --task 3", "write K/N", "--task 3", "such as 3/64"),
    ("convert lines/*.jsonl cv --transform nowhere:f", "No module named", "--transform nowhere:f", "Write module:name"),
    ("convert lines/*.jsonl cv --compression zip", "unknown compression", "'zip'", "use one of"),
    ("cache lsit", "invalid choice: 'lsit'", "penstock cache", "choose from"),
    ("cache prune", "required", "penstock cache prune", "--to"),
    ("cache prune --to lots", "is not a size", "'lots'", "write it like"),
    ("cache warm nowhere", "there is no folder", "nowhere", "check the path"),
    ("cache clear s3://nowhere/x", "is not in", "s3://nowhere/x", "cache"),
    ("cache list afile", "is not a folder", "afile", "passed as `local`"),
    ("cache verify --folder nowhere", "is not a folder", "nowhere", "passed as `local`"),
]


@pytest.mark.parametrize(("command", "what", "where", "cure"), COMMANDS, ids=lambda text: text)
def test_a_command_says_what_where_and_what_to_do(
    command: str, what: str, where: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(command.split())
    except SystemExit as ended:  # argparse
        status = int(ended.code or 0)
    said = " ".join(capsys.readouterr().err.split())
    assert status == 2
    assert all(part in said for part in (what, where, cure)), said


def test_a_folder_of_a_cache_that_is_yet_to_come_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list", "cache/train"]) == 0
    out, err = capsys.readouterr()
    assert out == "nothing is cached\n"
    assert "there is no folder cache/train yet" in err


def test_the_command_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: penstock" in capsys.readouterr().out


def test_every_public_class_and_command_is_in_the_table() -> None:
    assert len(MISTAKES) + len(COMMANDS) >= 90
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)
    assert issubclass(MemoryShardedSource, ShardedSource)
