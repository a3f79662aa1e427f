"""Settings of a pipeline and of all its stages, checked when they are made and before anything is read."""

from __future__ import annotations

# The names in annotations are looked up when settings are read from plain values, so they are imported for good.
from collections.abc import Callable, Mapping, Sequence  # noqa: TC003
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from penstock.errors import ConfigError
from penstock.order.quota import exact_shares
from penstock.pipeline.fields import check_types, dump_text, is_yaml_path, load_text, read_fields, write_fields
from penstock.publish.settings import SaveFormat
from penstock.sources.mix.weights import ScheduleUnit, WeightSchedulePoint, WeightScheduler
from penstock.sources.pack.documents import LongDocuments
from penstock.sources.tokens.tokenizers import TokenizerConfig  # noqa: TC001
from penstock.units import check_seconds, check_whole, parse_bytes

SCHEMA_VERSION = 1

ProgressType = Literal["tqdm", "rich", "plain", "json", "none"]
HashFunction = Literal["combined", "content", "path"]
DatasetType = Literal["json", "jsonl", "parquet", "csv", "tsv", "arrow", "txt", "huggingface", "hf"]


def _check_choice(name: str, value: Any, known: Any) -> None:
    if value is not None and value not in get_args(known):
        raise ConfigError(f"{name}={value!r} is unknown: use one of {', '.join(map(str, get_args(known)))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """One dataset: which files, of which kind, and how their text is tokenized."""

    data_files: str | Path | Sequence[str | Path] = field(repr=False)  # URLs may be signed
    name: str | None = None
    type: DatasetType | None = None
    split: str = "train"
    num_rows: int | None = None
    dataset_split_name: str | None = None  # the subset of a dataset of the Hub
    tokenizer: str | TokenizerConfig | None = None
    tokenizer_kwargs: Mapping[str, Any] | None = field(default=None, repr=False)  # may hold a token of the Hub
    cache_path: str | None = None
    cache_enabled: bool = True
    save_path: str | None = None
    save_format: SaveFormat | None = None
    content_field: str = "text"
    additional_fields: Sequence[str] | None = None
    format_callback: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    format_fields: Mapping[str, str] | None = None
    shard_column: str | None = None
    num_shards: int | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.data_files:
            raise ConfigError("data_files= of a dataset names no file")
        _check_choice("type", self.type, DatasetType)
        _check_choice("save_format", self.save_format, SaveFormat)
        check_whole("num_rows", self.num_rows, 0)
        check_whole("num_shards", self.num_shards, 1)
        if self.format_callback is not None and not callable(self.format_callback):
            raise ConfigError("format_callback= cannot be called")
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStageConfig:
    """How files are read."""

    streaming: bool = True
    cloud_max_retries: int = 3
    cloud_retry_delay: float = 1.0
    dask_storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_whole("cloud_max_retries", self.cloud_max_retries, 0)
        check_seconds("cloud_retry_delay", self.cloud_retry_delay)
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeStageConfig:
    """How text is tokenized, where a dataset does not say otherwise."""

    default_tokenizer: str | TokenizerConfig | None = None
    max_length: int = 2048
    batch_size: int = 1000
    num_workers: int = 4
    cache_tokenized: bool = True
    remove_columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_whole("max_length", self.max_length, 1)
        check_whole("batch_size", self.batch_size, 1)
        check_whole("num_workers", self.num_workers, 0)
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStageConfig:
    """Where processed data is kept, and who computes it."""

    enabled: bool = True
    cache_type: Literal["hierarchical", "memory", "disk"] = "hierarchical"
    cache_dir: str = ".cache/penstock_pipeline"  # or the URL of a store
    memory_cache_size: int = 100  # MB of samples that a hierarchical cache holds in memory, in front of its files
    disk_cache_expiry: float | None = None  # seconds; None: never, because other data have another key
    compression: Literal["none", "gzip", "lz4", "zstd"] = "none"
    hash_fn: HashFunction = "combined"
    num_workers: int = 0  # processes that build it; 0: this one
    max_shard_size: str | int = "64MB"
    part_size: str | int = "16MB"  # stored bytes of input that one process takes at a time
    wait: bool = True  # False: samples can be read while others are computed

    def __post_init__(self) -> None:
        _check_choice("cache_type", self.cache_type, Literal["hierarchical", "memory", "disk"])
        _check_choice("compression", self.compression, Literal["none", "gzip", "lz4", "zstd"])
        if self.compression == "lz4":
            raise ConfigError("compression='lz4' is not there for cached samples, which are MDS shards: use 'zstd'")
        _check_choice("hash_fn", self.hash_fn, HashFunction)
        check_whole("memory_cache_size", self.memory_cache_size, 0)
        if self.disk_cache_expiry is not None:
            check_seconds("disk_cache_expiry", self.disk_cache_expiry)
        check_whole("num_workers", self.num_workers, 0)
        for name in ("max_shard_size", "part_size"):
            if parse_bytes(getattr(self, name)) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} leaves no room for a sample")
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixStageConfig:
    """How datasets are mixed."""

    weights: Mapping[str, float] | None = None
    weight_schedule: list[WeightSchedulePoint] | None = None
    weight_schedule_type: Literal["step", "linear", "cosine"] = "step"
    weight_schedule_unit: ScheduleUnit = "samples"  # what the steps of the schedule count
    weight_schedule_batch_size: int | None = None  # samples of a batch over all ranks, if they count batches
    block_size: int = 1000
    stop_strategy: Literal["restart", "first_exhausted", "all_exhausted"] = "restart"
    epochs: int | Mapping[str, int] | None = None  # how often datasets are read at most
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.weights is not None:
            exact_shares(list(self.weights.values()))
            if self.weight_schedule is not None:
                raise ConfigError("a mix has weights or a weight_schedule, not both")
        _check_choice("weight_schedule_type", self.weight_schedule_type, Literal["step", "linear", "cosine"])
        _check_choice("stop_strategy", self.stop_strategy, Literal["restart", "first_exhausted", "all_exhausted"])
        _check_choice("weight_schedule_unit", self.weight_schedule_unit, ScheduleUnit)
        check_whole("block_size", self.block_size, 1)
        self.scheduler()
        check_types(self)

    def scheduler(self) -> WeightScheduler | None:
        """Return the schedule of weights, if there is one."""
        if self.weight_schedule is None:
            if self.weight_schedule_unit != "samples" or self.weight_schedule_batch_size is not None:
                raise ConfigError("weight_schedule_unit= and weight_schedule_batch_size= need a weight_schedule=")
            return None
        return WeightScheduler(
            self.weight_schedule, self.weight_schedule_type, self.weight_schedule_unit, self.weight_schedule_batch_size
        )

    @property
    def names(self) -> set[str]:
        """The datasets that weights are given for."""
        points = self.weight_schedule or ()
        return set(self.weights or ()).union(*(point.weights for point in points))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStageConfig:
    """How documents are packed into rows."""

    enabled: bool = False
    seq_length: int = 2048
    eos_token_id: int | None = 2
    pad_token_id: int = 0
    strategy: Literal["greedy", "pool", "first_fit"] = "greedy"
    num_packers: int = 4
    include_segment_ids: bool = True
    shuffle_packed: bool = True
    shuffle_buffer_factor: int = 10
    long_documents: LongDocuments = "split"
    include_cu_seqlens: bool = False

    def __post_init__(self) -> None:
        _check_choice("long_documents", self.long_documents, LongDocuments)
        _check_choice("strategy", self.strategy, Literal["greedy", "pool", "first_fit"])
        check_whole("seq_length", self.seq_length, 2)
        check_whole("num_packers", self.num_packers, 1)
        check_whole("shuffle_buffer_factor", self.shuffle_buffer_factor, 1)
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStageConfig:
    """How batches are loaded."""

    batch_size: int = 8
    prefetch_enabled: bool = True
    prefetch_workers: int = 2
    prefetch_buffer_size: int = 4
    shuffle_buffer_size: int | None = None
    drop_last: bool = True
    prefetch_to_device: bool = False
    shuffle: bool = False  # globally, instead of by a buffer

    def __post_init__(self) -> None:
        if self.shuffle and self.shuffle_buffer_size is not None:
            raise ConfigError("shuffle=True shuffles globally and needs no buffer: leave out shuffle_buffer_size=")
        for name in ("batch_size", "prefetch_workers", "prefetch_buffer_size", "shuffle_buffer_size"):
            check_whole(name, getattr(self, name), 1)
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStageConfig:
    """Where and how results are written."""

    enabled: bool = False
    output_dir: str = "./output"
    format: SaveFormat = "parquet"
    num_shards: int | None = None
    compression: str | None = None
    max_shard_size: str | int = "500MB"
    overwrite: bool = False
    resume: bool = False
    push_to_hub: bool = False
    hub_repo_id: str | None = None
    hub_private: bool = False
    hub_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_choice("format", self.format, SaveFormat)
        check_whole("num_shards", self.num_shards, 1)
        if parse_bytes(self.max_shard_size) < 1:
            raise ConfigError(f"max_shard_size={self.max_shard_size!r} leaves no room for a sample")
        if self.push_to_hub and not self.hub_repo_id:
            raise ConfigError("push_to_hub=True needs hub_repo_id=")
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Whether and how work is spread with Ray."""

    enabled: bool = False
    num_workers: int = 4
    resources_per_worker: Mapping[str, float] | None = None
    use_gpu: bool = False
    object_store_memory: int | None = None

    def __post_init__(self) -> None:
        check_whole("num_workers", self.num_workers, 1)
        check_whole("object_store_memory", self.object_store_memory, 1)
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """What a pipeline says of its progress."""

    progress_enabled: bool = True
    progress_type: ProgressType = "tqdm"
    metrics_enabled: bool = True
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_interval: int = 100

    def __post_init__(self) -> None:
        _check_choice("progress_type", self.progress_type, ProgressType)
        _check_choice("log_level", self.log_level, Literal["DEBUG", "INFO", "WARNING", "ERROR"])
        check_whole("log_interval", self.log_interval, 1)
        check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """All settings of a pipeline. They are checked when they are made: nothing is read before that.

    Datasets without a name are called `dataset_0`, `dataset_1` and so on.
    """

    datasets: list[DatasetConfig]
    default_tokenizer: str | TokenizerConfig | None = None
    streaming: bool = True
    seed: int | None = None
    source: SourceStageConfig = field(default_factory=SourceStageConfig)
    tokenize: TokenizeStageConfig = field(default_factory=TokenizeStageConfig)
    cache: CacheStageConfig = field(default_factory=CacheStageConfig)
    mix: MixStageConfig = field(default_factory=MixStageConfig)
    pack: PackStageConfig = field(default_factory=PackStageConfig)
    load: LoadStageConfig = field(default_factory=LoadStageConfig)
    save: SaveStageConfig = field(default_factory=SaveStageConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        check_types(self)
        if self.schema_version != SCHEMA_VERSION:
            raise ConfigError(
                f"the settings are of schema version {self.schema_version}, and this release reads {SCHEMA_VERSION}"
            )
        problems = self.validate()
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def names(self) -> list[str]:
        """The names of all datasets."""
        return [dataset.name or f"dataset_{number}" for number, dataset in enumerate(self.datasets)]

    def get_dataset_by_name(self, name: str) -> DatasetConfig:
        """Return the dataset of a name."""
        try:
            return self.datasets[self.names.index(name)]
        except ValueError:
            raise ConfigError(f"there is no dataset {name!r}: there are {', '.join(self.names)}") from None

    def validate(self) -> list[str]:
        """List what does not fit together; nothing is read for it."""
        names = self.names
        if not names:
            return ["datasets= names no dataset"]
        problems = [
            f"several datasets are called {name!r}" for name in sorted({n for n in names if names.count(n) > 1})
        ]
        unknown = sorted(self.mix.names - set(names))
        if unknown:
            problems.append(f"mix has weights for {', '.join(unknown)}, and the datasets are {', '.join(names)}")
        missing = sorted(set(names) - self.mix.names)
        if self.mix.names and missing:
            problems.append(f"mix has no weights for {', '.join(missing)}")
        return problems

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PipelineConfig:
        """Make settings of plain values; a field that does not exist is an error that names the likely one."""
        return read_fields(cls, values)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values, which `from_dict` reads."""
        return write_fields(self)

    @classmethod
    def load_file(cls, path: str | Path) -> PipelineConfig:
        """Read settings from a `.json` or `.yaml` file."""
        is_yaml = is_yaml_path(path)
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return cls.from_dict(load_text(text, is_yaml=is_yaml))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def save_file(self, path: str | Path) -> None:
        """Write settings to a `.json` or `.yaml` file."""
        Path(path).write_text(dump_text(self.to_dict(), is_yaml=is_yaml_path(path)))
