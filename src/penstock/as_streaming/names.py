"""Which of our names stands for which of MosaicML Streaming's, and what to use instead of those that have none."""

from __future__ import annotations

_HELPERS = "penstock.as_streaming.helpers"
_ENCODINGS = "penstock.as_streaming.encodings"
_CODECS = "penstock.as_streaming.codecs"
_ORDERS = "penstock.as_streaming.orders"
_READER = "penstock.as_streaming.readers"
_REGISTRIES = "penstock.as_streaming.registries"
_WORLD = "penstock.as_streaming.world"
_WRITER = "penstock.publish.writers"


def _of(home: str, *names: str) -> dict[str, str]:
    return {name: f"{home}:{name}" for name in names}


_WRITERS = _of(_WRITER, "CSVWriter", "JSONWriter", "MDSWriter", "TSVWriter", "XSVWriter")
_XSV_WRITERS = _of(_WRITER, "CSVWriter", "TSVWriter", "XSVWriter")
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
_READERS = {**_of(_READER, "Reader"), "FileInfo": "penstock.data.mosaic_names:ShardFile"}
_BATCHINGS = ("device_per_stream", "per_stream", "random", "stratified")
_SHUFFLES = ("naive", "py1b", "py1br", "py1e", "py1s", "py2s")

# Module of the original → its names → ours, as `module:attribute`.
NAMES: dict[str, dict[str, str]] = {
    "streaming": {**_MAIN, "__version__": f"{_HELPERS}:VERSION"},
    "streaming._version": {"__version__": f"{_HELPERS}:VERSION"},
    "streaming.base": _MAIN,
    "streaming.base.array": _of(_HELPERS, "Array"),
    "streaming.base.batching": {
        **_of(_ORDERS, "batching_methods", "generate_work"),
        **_of(_ORDERS, *(f"generate_work_{name}_batching" for name in _BATCHINGS)),
        **_of(_WORLD, "World"),
    },
    **{f"streaming.base.batching.{name}": _of(_ORDERS, f"generate_work_{name}_batching") for name in _BATCHINGS},
    "streaming.base.compression": _of(
        _CODECS,
        *("Brotli", "Bzip2", "Compression", "Gzip", "LevelledCompression", "Snappy", "Zstandard"),
        *("compress", "decompress", "get_compression_extension", "get_compressions", "is_compression"),
    ),
    "streaming.base.dataloader": _of("penstock.loaders.torch", "StreamingDataLoader"),
    "streaming.base.dataset": _of("penstock.data.dataset", "StreamingDataset"),
    "streaming.base.distributed": _of(
        "penstock.as_streaming.distributed",
        *("all_gather", "all_gather_object", "barrier", "broadcast", "get_local_rank", "get_local_world_size"),
        *("get_rank", "get_world_size", "maybe_init_dist"),
    ),
    "streaming.base.format": {**_WRITERS, **_INDEX_NAME, **_READERS, **_of(_READER, "reader_from_json")},
    "streaming.base.format.base": _READERS,
    "streaming.base.format.base.reader": _READERS,
    "streaming.base.format.base.writer": _of("penstock.publish.writer", "Writer"),
    "streaming.base.format.index": _INDEX_NAME,
    "streaming.base.format.json": _of(_WRITER, "JSONWriter"),
    "streaming.base.format.json.encodings": {
        **{name: f"{_ENCODINGS}:Json{name}" for name in ("Float", "Int", "Str")},
        **_of(_ENCODINGS, "is_json_encoded", "is_json_encoding"),
    },
    "streaming.base.format.json.writer": _of(_WRITER, "JSONWriter"),
    "streaming.base.format.mds": _of(_WRITER, "MDSWriter"),
    "streaming.base.format.mds.encodings": {
        **_of(_ENCODINGS, *_MDS_CLASSES, "get_mds_encoded_size", "get_mds_encodings", "is_mds_encoding"),
        **_of(_ENCODINGS, "is_mds_encoding_safe", "mds_decode", "mds_encode"),
        "_encodings": f"{_ENCODINGS}:mds_encodings",
    },
    "streaming.base.format.mds.writer": _of(_WRITER, "MDSWriter"),
    "streaming.base.format.xsv": _XSV_WRITERS,
    "streaming.base.format.xsv.encodings": {
        **{name: f"{_ENCODINGS}:Xsv{name}" for name in ("Float", "Int", "Str")},
        **_of(_ENCODINGS, "is_xsv_encoding", "xsv_decode", "xsv_encode"),
    },
    "streaming.base.format.xsv.writer": _XSV_WRITERS,
    "streaming.base.hashing": _of(_CODECS, "get_hash", "get_hashes", "is_hash"),
    "streaming.base.local": _of("penstock.data.local", "LocalDataset"),
    "streaming.base.partition": _of(_ORDERS, "get_partitions", "get_partitions_orig", "get_partitions_relaxed"),
    "streaming.base.partition.orig": _of(_ORDERS, "get_partitions_orig"),
    "streaming.base.partition.relaxed": _of(_ORDERS, "get_partitions_relaxed"),
    "streaming.base.registry_utils": _of(
        _REGISTRIES, "TypedRegistry", "construct_from_registry", "create_registry", "import_file"
    ),
    "streaming.base.sampling": _of(_ORDERS, "get_sampling"),
    "streaming.base.shuffle": _of(_ORDERS, "get_shuffle", *(f"get_shuffle_{name}" for name in _SHUFFLES)),
    **{f"streaming.base.shuffle.{name}": _of(_ORDERS, f"get_shuffle_{name}") for name in _SHUFFLES},
    "streaming.base.spanner": _of(_HELPERS, "Spanner"),
    "streaming.base.stream": {
        **_of("penstock.data.stream", "Stream"),
        **_of(_REGISTRIES, "streams_registry"),
    },
    "streaming.base.util": {
        **_of("penstock.publish.merge_index", "merge_index"),
        **_of(_HELPERS, "bytes_to_int", "clean_stale_shared_memory", "get_list_arg", "number_abbrev_to_int", "retry"),
    },
    "streaming.base.world": _of(_WORLD, "World"),
}

_READ = "use reader_from_json(folder, split, entry of the index), which reads every format; or LocalDataset(folder)[i]"
_WRITE = "to read a shard format of your own, write a plug-in: see 'To add a format' in docs/design.md"
_NAMED = "pass the name of the algorithm to StreamingDataset, as shuffle_algo=, partition_algo= or batching_method="
_SHARED = "penstock keeps nothing in shared memory, so there is nothing to name, wait for or clean up: leave it out"
_FETCH = (
    "StreamingDataset downloads shards by itself, dataset.fetch(url) gets any other file, and writers upload to"
    " out='s3://…'"
)
_WAIT = "call torch.distributed.barrier() to wait for other ranks; files appear only when they are complete"
_PUBLIC = (
    "it was made for one public dataset: inherit from StreamingDataset and do the same in __getitem__, as"
    " docs/migrating.md shows"
)

_FORMATS = (
    *("CSVReader", "JSONReader", "MDSReader", "TSVReader", "XSVReader", "base.reader.JointReader"),
    *("base.reader.SplitReader", "json.JSONReader", "json.reader", "mds.MDSReader", "mds.reader"),
    *("xsv.CSVReader", "xsv.TSVReader", "xsv.XSVReader", "xsv.reader"),
)

# A name of the original, or a module and all below it → what its user does here.
INSTEAD: dict[str, str] = {
    "streaming.base.constant": _SHARED,
    "streaming.base.converters": (
        "write each partition with MDSWriter(out=folder/number) and join them with merge_index: see docs/migrating.md"
    ),
    "streaming.base.dataset.NEVER": _SHARED,
    **{f"streaming.base.format.{name}": _READ for name in _FORMATS},
    "streaming.base.format.base.writer.JointWriter": _WRITE,
    "streaming.base.format.base.writer.SplitWriter": _WRITE,
    "streaming.base.format.json.encodings.Encoding": "JSON columns are str, int or float: use one of these",
    "streaming.base.format.mds.encodings.List": "inherit from Encoding and store the list as you like",
    "streaming.base.format.mds.encodings.Scalar": "inherit from Encoding, and set `size` to the bytes of a value",
    "streaming.base.format.mds.encodings.StrEncoding": "inherit from Encoding and store the text as UTF-8",
    "streaming.base.format.xsv.encodings.Encoding": "CSV, TSV and XSV columns are str, int or float: use one of these",
    "streaming.base.partition.algos": _NAMED,
    "streaming.base.registry_utils.save_registry": "make a registry of your own with create_registry",
    "streaming.base.shared": _SHARED,
    "streaming.base.shuffle.algos": _NAMED,
    "streaming.base.shuffle.py1s.divide_spans": _NAMED,
    "streaming.base.storage": _FETCH,
    "streaming.base.util.TICK": _SHARED,
    "streaming.base.util.get_import_exception_message": "penstock's own errors name the library that is missing",
    "streaming.base.util.wait_for_file_to_exist": _WAIT,
    "streaming.base.util.wait_for_local_leader": _WAIT,
    "streaming.multimodal": _PUBLIC,
    "streaming.text": _PUBLIC,
    "streaming.vision": _PUBLIC,
}
