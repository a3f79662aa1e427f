"""The modules that `import streaming` finds: which of our names stands for which, and what to use instead of others.

Each module gives the names of its table, and loads nothing before that.
"""

from __future__ import annotations

import sys
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.errors import NotProvidedError

if TYPE_CHECKING:
    from collections.abc import Mapping


_HELPERS = "penstock.as_streaming.helpers"
_SPARK = "penstock.conversion.spark"
_ENCODINGS = "penstock.as_streaming.encodings"
_ORDERS = "penstock.as_streaming.orders"
_RANKS = "penstock.as_streaming.ranks"
_WRITER = "penstock.publish.writer"


def _of(home: str, *names: str) -> dict[str, str]:
    return {name: f"{home}:{name}" for name in names}


_WRITERS = _of(_WRITER, "CSVWriter", "JSONWriter", "MDSWriter", "TSVWriter", "XSVWriter")
_XSV_WRITERS = _of(_WRITER, "CSVWriter", "TSVWriter", "XSVWriter")


def _of_reader(*forms: str) -> dict[str, str]:
    return {f"{form}Reader": f"{_HELPERS}:Reader" for form in forms}


_MAIN = {
    **_of("penstock.data.dataset", "StreamingDataset"),
    **_of("penstock.data.local", "LocalDataset"),
    **_of("penstock.data.stream", "Stream"),
    **_of("penstock.loaders.torch", "StreamingDataLoader"),
    **_WRITERS,
}
_INDEX_NAME = _of(_HELPERS, "get_index_basename")
_MDS_CLASSES = (
    *("Bytes", "Encoding", "Float16", "Float32", "Float64", "Int", "Int16", "Int32", "Int64", "Int8", "JPEG"),
    *("JPEGArray", "JPEGList", "JSON", "NDArray", "PIL", "PILList", "PNG", "PNGList", "Pickle", "Str", "StrDecimal"),
    *("StrFloat", "StrInt", "UInt16", "UInt32", "UInt64", "UInt8"),
)
_READERS = {**_of(_HELPERS, "Reader"), "FileInfo": "penstock.data.mosaic_names:ShardFile"}
_BATCHINGS = ("device_per_stream", "per_stream", "random", "stratified")
_SHUFFLES = ("naive", "py1b", "py1br", "py1e", "py1s", "py2s")

_CONVERTERS = {
    **_of(_SPARK, "dataframe_to_mds", "infer_dataframe_schema", "is_json_compatible"),
    "SPARK_TO_MDS": f"{_SPARK}:ENCODINGS",
    "dataframeToMDS": f"{_SPARK}:dataframe_to_mds",
}

# Where the classes of an area of datasets are: reader → the file that it is in.
_DATASETS = {
    "text": {"StreamingC4": "c4", "StreamingEnWiki": "enwiki", "StreamingPile": "pile"},
    "vision": {
        "StreamingADE20K": "ade20k",
        "StreamingCIFAR10": "cifar10",
        "StreamingCOCO": "coco",
        "StreamingImageNet": "imagenet",
    },
    "multimodal": {f"Streaming{name}WebVid": "webvid" for name in ("Inside", "OutsideDT", "OutsideGI")},
}
# Where their scripts are: the module of the original below `convert` → ours, with the object that has `main`.
_SCRIPTS = {
    "text": {
        **{name: f"{name}:recipe" for name in ("c4", "enwiki_text", "pile")},
        "enwiki.mds.create_pretraining_data": "enwiki_tools:create_pretraining_data",
        "enwiki.mds.make_train_parallel": "enwiki_tools:make_train_parallel",
        "enwiki.mds.merge_shard_groups": "enwiki_tools:merge_shard_groups",
        "enwiki.mds.pick_eval_samples": "enwiki_tools:pick_eval_samples",
        "enwiki.tfrecord.count_samples": "enwiki_tools:count_samples",
        "enwiki.tfrecord.create_pretraining_data": "enwiki_tools:create_tfrecords",
        "enwiki.tfrecord.make_train_parallel": "enwiki_tools:make_tfrecords_parallel",
        "enwiki.tfrecord.pick_eval_samples": "enwiki_tools:pick_tfrecords",
    },
    "vision": {name: f"{name}:recipe" for name in ("ade20k", "cifar10", "coco", "fake_cifar10", "imagenet")},
    "multimodal": {
        **{
            f"webvid.{name}": f"{name}:recipe"
            for name in ("crawl_webvid", "crawl_webvid_subsets", "extract_webvid_videos")
        },
        "laion.laion400m.convert_and_upload": "laion400m:recipe",
    },
}


def _dataset_names() -> dict[str, dict[str, str]]:
    """Return the modules of the datasets that people know, and of the scripts that convert them."""
    found: dict[str, dict[str, str]] = {}
    for area, readers in _DATASETS.items():
        module, ours = f"streaming.{area}", f"penstock.recipes.{area}"
        homes = {name: f"{ours}.{file}:{name}" for name, file in readers.items()}
        found[module] = homes
        for name, file in readers.items():
            found.setdefault(f"{module}.{file}", {})[name] = homes[name]
        for script, home in _SCRIPTS[area].items():
            above, _, last = f"{module}.convert.{script}".rpartition(".")
            found[f"{above}.{last}"] = {name: f"{ours}.{home}.{name}" for name in ("main", "parse_args")}
            while above != module:  # the folders that it is in
                found.setdefault(above, {})
                above = above.rpartition(".")[0]
    base = "penstock.recipes.vision.base"
    found["streaming.vision.base"] = _of(base, "StandardTransform", "StreamingVisionDataset")
    found["streaming.vision.convert.base"] = _of(base, "convert_image_class_dataset")
    return found


# Module of the original → its names → ours, as `module:attribute`.
NAMES: dict[str, dict[str, str]] = {
    **_dataset_names(),
    "streaming": {**_MAIN, "__version__": f"{_HELPERS}:VERSION"},
    "streaming._version": {"__version__": f"{_HELPERS}:VERSION"},
    "streaming.base": _MAIN,
    "streaming.base.array": _of(_HELPERS, "Array"),
    "streaming.base.batching": {
        **_of(_ORDERS, "batching_methods", "generate_work"),
        **_of(_ORDERS, *(f"generate_work_{name}_batching" for name in _BATCHINGS)),
        **_of(_RANKS, "World"),
    },
    **{f"streaming.base.batching.{name}": _of(_ORDERS, f"generate_work_{name}_batching") for name in _BATCHINGS},
    "streaming.base.compression": _of(
        _ENCODINGS,
        *("Brotli", "Bzip2", "Compression", "Gzip", "LevelledCompression", "Snappy", "Zstandard"),
        *("compress", "decompress", "get_compression_extension", "get_compressions", "is_compression"),
    ),
    "streaming.base.converters": _CONVERTERS,
    "streaming.base.converters.dataframe_to_mds": _CONVERTERS,
    "streaming.base.dataloader": _of("penstock.loaders.torch", "StreamingDataLoader"),
    "streaming.base.dataset": _of("penstock.data.dataset", "StreamingDataset"),
    "streaming.base.distributed": _of(
        _RANKS,
        *("all_gather", "all_gather_object", "barrier", "broadcast", "get_local_rank", "get_local_world_size"),
        *("get_rank", "get_world_size", "maybe_init_dist"),
    ),
    "streaming.base.format": {
        **_WRITERS,
        **_INDEX_NAME,
        **_READERS,
        **_of_reader("CSV", "JSON", "MDS", "TSV", "XSV"),
        **_of(_HELPERS, "reader_from_json"),
    },
    "streaming.base.format.base": _READERS,
    "streaming.base.format.base.reader": {
        **_READERS,
        **dict.fromkeys(("JointReader", "SplitReader"), f"{_HELPERS}:Reader"),
    },
    "streaming.base.format.base.writer": _of("penstock.publish.writer", "Writer"),
    "streaming.base.format.index": _INDEX_NAME,
    "streaming.base.format.json": _of(_WRITER, "JSONWriter") | _of_reader("JSON"),
    "streaming.base.format.json.reader": _of_reader("JSON"),
    "streaming.base.format.json.encodings": {
        **{name: f"{_ENCODINGS}:Json{name}" for name in ("Float", "Int", "Str")},
        **_of(_ENCODINGS, "is_json_encoded", "is_json_encoding"),
    },
    "streaming.base.format.json.writer": _of(_WRITER, "JSONWriter"),
    "streaming.base.format.mds": _of(_WRITER, "MDSWriter") | _of_reader("MDS"),
    "streaming.base.format.mds.reader": _of_reader("MDS"),
    "streaming.base.format.mds.encodings": {
        **_of(_ENCODINGS, *_MDS_CLASSES, "get_mds_encoded_size", "get_mds_encodings", "is_mds_encoding"),
        **_of(_ENCODINGS, "is_mds_encoding_safe", "mds_decode", "mds_encode"),
        "_encodings": f"{_ENCODINGS}:mds_encodings",
    },
    "streaming.base.format.mds.writer": _of(_WRITER, "MDSWriter"),
    "streaming.base.format.xsv": _XSV_WRITERS | _of_reader("CSV", "TSV", "XSV"),
    "streaming.base.format.xsv.reader": _of_reader("CSV", "TSV", "XSV"),
    "streaming.base.format.xsv.encodings": {
        **{name: f"{_ENCODINGS}:Xsv{name}" for name in ("Float", "Int", "Str")},
        **_of(_ENCODINGS, "is_xsv_encoding", "xsv_decode", "xsv_encode"),
    },
    "streaming.base.format.xsv.writer": _XSV_WRITERS,
    "streaming.base.hashing": _of(_ENCODINGS, "get_hash", "get_hashes", "is_hash"),
    "streaming.base.local": _of("penstock.data.local", "LocalDataset"),
    "streaming.base.partition": {
        **_of(_ORDERS, "get_partitions", "get_partitions_orig", "get_partitions_relaxed"),
        "algos": f"{_ORDERS}:partitions",
    },
    "streaming.base.partition.orig": _of(_ORDERS, "get_partitions_orig"),
    "streaming.base.partition.relaxed": _of(_ORDERS, "get_partitions_relaxed"),
    "streaming.base.registry_utils": _of(
        _HELPERS, "TypedRegistry", "construct_from_registry", "create_registry", "import_file"
    ),
    "streaming.base.sampling": _of(_ORDERS, "get_sampling"),
    "streaming.base.shuffle": {
        **_of(_ORDERS, "get_shuffle", *(f"get_shuffle_{name}" for name in _SHUFFLES)),
        "algos": f"{_ORDERS}:shuffles",
    },
    **{f"streaming.base.shuffle.{name}": _of(_ORDERS, f"get_shuffle_{name}") for name in _SHUFFLES},
    "streaming.base.spanner": _of(_HELPERS, "Spanner"),
    "streaming.base.stream": {
        **_of("penstock.data.stream", "Stream"),
        **_of(_HELPERS, "streams_registry"),
    },
    "streaming.base.util": {
        **_of("penstock.publish.merge_index", "merge_index"),
        **_of(_HELPERS, "bytes_to_int", "clean_stale_shared_memory", "get_list_arg", "number_abbrev_to_int", "retry"),
        **_of(_HELPERS, "get_import_exception_message"),
    },
    "streaming.base.world": _of(_RANKS, "World"),
}

_WRITE = "to read a shard format of your own, write a plug-in: see 'To add …' in CONTRIBUTING.md"
_NAMED = "pass the name of the algorithm to StreamingDataset, as shuffle_algo=, partition_algo= or batching_method="
_SHARED = "penstock keeps nothing in shared memory, so there is nothing to name, wait for or clean up: leave it out"
_FETCH = (
    "StreamingDataset downloads shards by itself, dataset.fetch(url) gets any other file, and writers upload to"
    " out='s3://…'"
)
_WAIT = "call torch.distributed.barrier() to wait for other ranks; files appear only when they are complete"
_CONVERT = (
    "it is an inside of a script, which is a recipe here: use main and parse_args of its module, or penstock convert"
    " --recipe, as docs/recipes.md shows"
)

_PRETRAINING = (
    *("FLAGS", "MaskedLmInstance", "TrainingInstance", "create_float_feature", "create_instances_from_document"),
    *("create_int_feature", "create_masked_lm_predictions", "create_training_instances", "flags", "truncate_seq_pair"),
    "write_instance_to_example_files",
)
_LAION = ("collect_and_upload_index", "convert", "convert_and_upload_shards", "each_downloaded_shard", "upload")
# What scripts that convert define for themselves.
_INSIDES = (
    *(
        f"text.convert.{name}"
        for name in ("c4.each", "c4.get", "enwiki.mds.tokenization", "enwiki.tfrecord.tokenization")
    ),
    *(f"text.convert.enwiki.mds.create_pretraining_data.{name}" for name in (*_PRETRAINING, "pack_f32", "pack_i32")),
    *(f"text.convert.enwiki.tfrecord.create_pretraining_data.{name}" for name in _PRETRAINING),
    *("text.convert.enwiki.tfrecord.count_samples.get_num_samples", "text.convert.enwiki_text.process_split"),
    *(
        f"text.convert.enwiki.tfrecord.pick_eval_samples.{name}"
        for name in ("args", "create_float_feature", "create_int_feature", "decode_record", "max_predictions_per_seq")
    ),
    *(f"text.convert.enwiki.tfrecord.pick_eval_samples.{name}" for name in ("max_seq_length", "parser")),
    *(f"text.convert.pile.{name}" for name in ("each_task", "file_to_dir", "merge_shard_groups", "with_id")),
    *("vision.convert.ade20k.each", "vision.convert.ade20k.get", "vision.convert.coco.each"),
    *("vision.convert.fake_cifar10.make_split", "vision.convert.imagenet.check_extensions"),
    "vision.convert.imagenet.get_classes",
    *(
        f"multimodal.convert.webvid.{script}.{name}"
        for script in ("crawl_webvid", "crawl_webvid_subsets")
        for name in ("digits_pattern", "download", "duration_pattern", "each_todo", "head", "parse_duration")
    ),
    "multimodal.convert.webvid.crawl_webvid_subsets.get_matches",
    "multimodal.convert.webvid.extract_webvid_videos.out_columns",
    *(
        f"multimodal.convert.laion.laion400m.convert_and_upload.{name}"
        for name in (*_LAION, "get_bytes", "get_float", "get_int", "get_str")
    ),
)

# A name of the original, or a module and all below it → what its user does here.
INSTEAD: dict[str, str] = {
    "streaming.base.constant": _SHARED,
    "streaming.base.dataset.NEVER": _SHARED,
    "streaming.base.format.base.writer.JointWriter": _WRITE,
    "streaming.base.format.base.writer.SplitWriter": _WRITE,
    "streaming.base.format.json.encodings.Encoding": "JSON columns are str, int or float: use one of these",
    "streaming.base.format.mds.encodings.List": "inherit from Encoding and store the list as you like",
    "streaming.base.format.mds.encodings.Scalar": "inherit from Encoding, and set `size` to the bytes of a value",
    "streaming.base.format.mds.encodings.StrEncoding": "inherit from Encoding and store the text as UTF-8",
    "streaming.base.format.xsv.encodings.Encoding": "CSV, TSV and XSV columns are str, int or float: use one of these",
    "streaming.base.registry_utils.save_registry": "make a registry of your own with create_registry",
    "streaming.base.shared": _SHARED,
    "streaming.base.shuffle.py1s.divide_spans": _NAMED,
    "streaming.base.storage": _FETCH,
    "streaming.base.util.TICK": _SHARED,
    "streaming.base.util.wait_for_file_to_exist": _WAIT,
    "streaming.base.util.wait_for_local_leader": _WAIT,
    **{f"streaming.{name}": _CONVERT for name in _INSIDES},
}


ROOT = "streaming"


class StandInModule(ModuleType):
    """A module of the original whose names are ours."""

    def __init__(self, name: str, homes: Mapping[str, str]) -> None:
        super().__init__(name, f"The names of MosaicML Streaming's `{name}`, provided by penstock.")
        self.__path__: list[str] = []  # every one may have modules below it
        self.__all__ = sorted(name for name in homes if not name.startswith("_"))
        self._homes = homes

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            home, _, attributes = self._homes[name].partition(":")
            value = attrgetter(attributes)(import_module(home))
            setattr(self, name, value)
            return value
        refuse(f"{self.__name__}.{name}")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return [*self._homes]


class _RefusedModules:
    """Says what to use instead where a module of the original has no counterpart."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """Raise for such a module, and leave all others to the finders that come after."""
        if name.startswith(f"{ROOT}."):
            refuse(name)


def refuse(name: str) -> None:
    """Raise an error for a name of the original, or one below it, that is known to have no counterpart."""
    known = name
    while known not in INSTEAD:
        known, dot, _ = known.rpartition(".")
        if not dot:
            return
    raise NotProvidedError(f"penstock does not provide {name}: {INSTEAD[known]}", name=name)


def stand_in() -> None:
    """Put our modules where `import streaming` looks first, unless the real ones are there already."""
    found = sys.modules.get(ROOT)
    if found is not None and not isinstance(found, StandInModule):
        raise NotProvidedError(
            f"{ROOT} has already been imported, from {getattr(found, '__file__', 'somewhere else')}: put `import"
            " penstock.as_streaming` above all other imports of your script"
        )
    modules = {name: StandInModule(name, homes) for name, homes in NAMES.items()}
    for name, module in modules.items():
        above, _, last = name.rpartition(".")
        if above:
            setattr(modules[above], last, module)
    sys.modules.update(modules)
    sys.meta_path.insert(0, _RefusedModules)
