"""The steps of building English Wikipedia for BERT one by one, as MDS and as TFRecord files.

`penstock convert --recipe enwiki` does all of them at once. Each of these takes the flags of the script of its name in
MosaicML Streaming: `python -m penstock.recipes.text.enwiki_tools create_pretraining_data --input_file …`.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.conversion.converting import source_of
from penstock.errors import ConfigError, OutputExistsError, PenstockError
from penstock.publish.engines import ProcessPool
from penstock.publish.merge_index import merge_index
from penstock.recipes.base import Command, add_flag, add_writing_flags, convert_rows
from penstock.recipes.text.documents import DocumentSource
from penstock.recipes.text.enwiki import EnWikiRecipe, add_pair_flags, pair_options
from penstock.recipes.text.pretraining import DTYPES, PairOptions, PairSource, WordPieces, picked
from penstock.recipes.text.tfrecord import count_records, pack_example, read_records, unpack_example, write_records
from penstock.sources.memory import MemoryShardedSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.conversion.converting import ConvertOptions
    from penstock.types import Sample

_COLUMNS: ConvertOptions = {"columns": EnWikiRecipe.columns}
_SCRIPT_DEFAULTS = PairOptions(max_seq_length=128, max_predictions_per_seq=20)


def as_globs(names: str) -> list[str]:
    """Return names with commas between them as globs: also those of files without a suffix, which are no folders."""
    return [name if name.endswith("*") else f"{name[:-1]}[{name[-1]}]" for name in names.split(",") if name]


def open_pairs(args: argparse.Namespace) -> PairSource:
    """Make samples of text files that are one unit, drawn as by the scripts of BERT."""
    words = WordPieces(args.vocab_file or "vocab.txt", lower=bool(args.do_lower_case))
    return PairSource(DocumentSource(as_globs(args.input_file)), words, pair_options(args), args.seed, is_one_unit=True)


def as_examples(samples: Iterator[Sample]) -> Iterator[bytes]:
    """Turn samples of bytes into examples of TensorFlow."""
    for sample in samples:
        yield pack_example({name: np.frombuffer(sample[name], dtype) for name, dtype in DTYPES.items()})


def of_examples(path: Path) -> Iterator[dict[str, bytes]]:
    """Turn the examples of a TFRecord file into samples."""
    for number, record in enumerate(read_records(path)):
        where = f"record {number} of {path}"
        features = unpack_example(record, where)
        if lacking := DTYPES.keys() - features.keys():
            raise ConfigError(f"{where} has no feature {min(lacking)!r}: it is no pretraining sample of BERT")
        yield {name: np.asarray(features[name]).astype(dtype).tobytes() for name, dtype in DTYPES.items()}


class _FromText(Command):
    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the text files, and how samples are made of them."""
        add_flag(parser, "--input_file", required=True, help="text files or globs, with commas between them")
        add_flag(parser, "--random_seed", type=int, default=12345, dest="seed", help="of all draws")
        add_pair_flags(parser, _SCRIPT_DEFAULTS)


class CreatePretrainingData(_FromText):
    """Make pretraining samples of text files, all of which are one unit, as one dataset of MDS shards."""

    name = "create_pretraining_data"

    def add_common_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add where to write, and how."""
        add_flag(parser, "--output_dir", required=True, help="the folder or URL of the dataset")
        add_writing_flags(parser, {"compression": "zstd:7"})

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Write one dataset."""
        return {"": convert_rows(open_pairs(args), os.fspath(args.output_dir), args, _COLUMNS)}


class CreateRecords(_FromText):
    """Make pretraining samples of text files, all of which are one unit, as TFRecord files of examples."""

    name = "create_tfrecords"

    def add_common_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the files."""
        add_flag(parser, "--output_file", required=True, help="TFRecord files, with commas, that samples are dealt to")

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Write the files."""
        paths = [Path(name) for name in args.output_file.split(",")]
        count = write_records(paths, as_examples(iter(open_pairs(args))))
        return {"": f"{count:,} examples in {args.output_file}"}


class MakeTrainParallel(EnWikiRecipe):
    """Make the train samples of all parts, several at a time, as one dataset: nothing is left to be merged."""

    name = "make_train_parallel"
    splits = ("train",)

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add which parts there are."""
        super().add_flags(parser)
        add_flag(parser, "--in_pattern", default="part-%05d-of-00500", help="names of the parts")
        add_flag(parser, "--in_num_shards", type=int, default=500, help="how many parts there are")

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Check that all parts are there, and write one dataset."""
        pairs = self.open_split(args, "train")
        found = {name.rpartition("/")[2] for name in pairs.shard_names}
        _check_numbered(args.in_pattern)
        for number in range(args.in_num_shards):
            if args.in_pattern % number not in found:
                raise ConfigError(
                    f"{args.in_pattern % number} is not in {args.in_root}: bring it, or set in_num_shards="
                )
        return {"": convert_rows(pairs, os.fspath(args.out_root), args, self.options(args))}


class MakeRecordsParallel(Command):
    """Make a TFRecord file of each text file, several at a time; those that are there already stay."""

    name = "make_train_parallel"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add names of files with a number in them."""
        add_flag(parser, "--input_pattern", required=True, help="text files, such as part-%%05d-of-00500")
        add_flag(parser, "--output_pattern", required=True, help="TFRecord files, such as part-%%05d.tfrecord")
        add_flag(parser, "--num_shards", type=int, default=500, help="how many there are")
        add_flag(parser, "--num_cpus", type=int, default=0, help="how many are made at a time; 0: one per processor")
        add_flag(parser, "--random_seed", type=int, default=12345, dest="seed", help="of all draws")
        add_pair_flags(parser, PairOptions())

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Make what is missing."""
        for pattern in (args.input_pattern, args.output_pattern):
            _check_numbered(pattern)
        numbers = [n for n in range(args.num_shards) if not Path(args.output_pattern % n).exists()]
        pool = ProcessPool(args.num_cpus or os.cpu_count() or 1)
        made = dict(pool.run(partial(_make_records, args), numbers, args.output_pattern))
        return {
            "": f"{sum(made.values()):,} examples in {len(made):,} files, {args.num_shards - len(made):,} were there"
        }


def _check_numbered(pattern: str) -> None:
    try:
        is_numbered = pattern % 0 != pattern % 1
    except (TypeError, ValueError):
        is_numbered = False
    if not is_numbered:
        raise ConfigError(f"{pattern} must have one number in it, such as %05d")


def _make_records(args: argparse.Namespace, number: int) -> int:
    own = argparse.Namespace(**{**vars(args), "input_file": args.input_pattern % number, "seed": args.seed + number})
    return write_records([Path(args.output_pattern % number)], as_examples(iter(open_pairs(own))))


class MergeShardGroups(Command):
    """Join datasets in folders side by side to one, which takes the place of `out_root`. No shard is copied."""

    name = "merge_shard_groups"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add both folders."""
        add_flag(parser, "--in_root", required=True, help="the folder with group-000 and so on")
        add_flag(parser, "--out_root", required=True, help="the folder that it becomes, which must not exist")

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Write one index, and rename the folder."""
        if os.path.lexists(args.out_root):
            raise OutputExistsError(f"{args.out_root} exists: choose another out_root", path=str(args.out_root))
        if not Path(args.in_root).is_dir():
            raise ConfigError(f"there is no folder {args.in_root}: name the one that holds the groups")
        merge_index(str(args.in_root))
        Path(args.in_root).rename(args.out_root)
        return {"": f"merged: {args.out_root}"}


class PickEvalSamples(Command):
    """Take some samples of a dataset, evenly, each once, to another one."""

    name = "pick_eval_samples"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add from where, to where and how many."""
        add_flag(parser, "--in_root", required=True, help="the dataset")
        add_flag(parser, "--out_root", required=True, help="the folder or URL of the new one")
        add_flag(parser, "--num_examples_to_pick", type=int, default=10_000, help="how many samples")
        add_writing_flags(parser, EnWikiRecipe.defaults)

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Write the samples."""
        source = source_of(str(args.in_root))
        samples = list(_rows_at(source, picked(args.num_examples_to_pick, len(source))))
        return {"": convert_rows(MemoryShardedSource(samples), os.fspath(args.out_root), args, _COLUMNS)}


def _rows_at(source: Any, numbers: list[int]) -> Iterator[Sample]:
    wanted = set(numbers)
    yield from (sample for number, sample in enumerate(source) if number in wanted)


class PickRecords(Command):
    """Take some examples of a TFRecord file, evenly, each once, to another one."""

    name = "pick_tfrecords"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add both files, and how many."""
        add_flag(parser, "--input_tfrecord", required=True, help="the file")
        add_flag(parser, "--output_tfrecord", required=True, help="the new file")
        add_flag(parser, "--num_examples_to_pick", type=int, default=10_000, help="how many examples")

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Write the examples as they are."""
        path = Path(args.input_tfrecord)
        wanted = set(picked(args.num_examples_to_pick, count_records(path)))
        records = (record for number, record in enumerate(read_records(path)) if number in wanted)
        return {"": f"{write_records([Path(args.output_tfrecord)], records):,} examples in {args.output_tfrecord}"}


class CountSamples(Command):
    """Count the records of the TFRecord files in a folder, without reading what is in them."""

    name = "count_samples"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the folder."""
        parser.add_argument("--dataset", required=True, help="the folder")

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Count them."""
        counts = {str(path): count_records(path) for path in sorted(Path(args.dataset).iterdir()) if path.is_file()}
        return {**{name: f"{name} {count}" for name, count in counts.items()}, "": str(sum(counts.values()))}


class RecordsToMDS(Command):
    """Convert TFRecord files of pretraining samples to MDS shards, a file to a task."""

    name = "tfrecord_to_mds"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add from where, and to where."""
        add_flag(parser, "--in_root", required=True, help="the folder of the TFRecord files")
        add_flag(parser, "--out_root", required=True, help="the folder or URL of the dataset")
        add_writing_flags(parser, EnWikiRecipe.defaults)

    def run(self, args: argparse.Namespace) -> Mapping[str, Any]:
        """Convert the files in the order of their names."""
        files = sorted(path for path in Path(args.in_root).iterdir() if path.is_file())
        return {"": convert_rows([partial(of_examples, path) for path in files], str(args.out_root), args, _COLUMNS)}


create_pretraining_data, create_tfrecords = CreatePretrainingData(), CreateRecords()
make_train_parallel, make_tfrecords_parallel = MakeTrainParallel(), MakeRecordsParallel()
pick_eval_samples, pick_tfrecords = PickEvalSamples(), PickRecords()
merge_shard_groups, count_samples, tfrecord_to_mds = MergeShardGroups(), CountSamples(), RecordsToMDS()


def run_tool(arguments: list[str]) -> None:
    """Run one of these by its name, with its flags."""
    tools = {name: value for name, value in globals().items() if isinstance(value, Command)}
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}", description=__doc__)
    parser.add_argument("tool", choices=sorted(tools))
    tool = tools[parser.parse_args(arguments[:1]).tool]
    try:
        tool.main(tool.parse_args(arguments[1:]))
    except PenstockError as error:
        sys.exit(f"{tool.name}: {error}")


if __name__ == "__main__":
    from penstock.recipes.text import enwiki_tools  # under its own name, which processes that run tasks find

    enwiki_tools.run_tool(sys.argv[1:])
