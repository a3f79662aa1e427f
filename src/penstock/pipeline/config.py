"""Settings of a pipeline and of all its stages: checked before anything is read, from and to plain values."""

from __future__ import annotations

import json

# The names in annotations are looked up when settings are read from plain values, so they are imported for good.
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import lru_cache, partial
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from penstock.errors import ConfigError
from penstock.extras import require
from penstock.order.quota import exact_shares
from penstock.publish.dataset_writer import SaveFormat  # noqa: TC001
from penstock.publish.engines import EngineName  # noqa: TC001
from penstock.sources.mix.weights import ScheduleUnit, WeightSchedulePoint, WeightScheduler
from penstock.sources.pack.rows import LongDocuments  # noqa: TC001
from penstock.sources.tokens.tokenizers import TokenizerConfig  # noqa: TC001
from penstock.units import check_seconds, check_whole, checks_making, parse_bytes

SCHEMA_VERSION = 1

T = TypeVar("T")

_SCALARS = (str, int, float, bool, type(None))

ProgressType = Literal["tqdm", "rich", "plain", "json", "none"]
HashFunction = Literal["combined", "content", "path"]
DatasetType = Literal["json", "jsonl", "parquet", "csv", "tsv", "arrow", "txt", "huggingface", "hf"]


def _check_room(name: str, value: Any) -> None:
    if parse_bytes(value) < 1:
        raise ConfigError(f"{name}={value!r} leaves no room for a sample")


# A type may bring a check of its values, which is called with the name of the field.
FromZero = Annotated[int, partial(check_whole, least=0)]
FromOne = Annotated[int, partial(check_whole, least=1)]
FromTwo = Annotated[int, partial(check_whole, least=2)]
Seconds = Annotated[float, check_seconds]
Size = Annotated[str | int, _check_room]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that are checked when they are made: each field by its type, then all of them together."""

    def __post_init__(self) -> None:
        check_types(self)
        self._check()

    def _check(self) -> None:
        """Refuse what does not fit together."""

    def arguments(self, *but: str) -> dict[str, Any]:
        """Return all fields except some, as arguments of what they are the settings of."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in but}


@checks_making
@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig(Settings):
    """One dataset: which files, of which kind, and how their text is tokenized."""

    data_files: str | Path | Sequence[str | Path] = field(repr=False)  # URLs may be signed
    name: str | None = None
    type: DatasetType | None = None
    split: str = "train"
    num_rows: FromZero | None = None
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
    num_shards: FromOne | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def _check(self) -> None:
        if not self.data_files:
            raise ConfigError("data_files= of a dataset names no file")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStageConfig(Settings):
    """How files are read."""

    streaming: bool = True
    cloud_max_retries: FromZero = 3
    cloud_retry_delay: Seconds = 1.0
    dask_storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeStageConfig(Settings):
    """How text is tokenized, where a dataset does not say otherwise."""

    default_tokenizer: str | TokenizerConfig | None = None
    max_length: FromOne = 2048
    batch_size: FromOne = 1000
    num_workers: FromZero = 4
    cache_tokenized: bool = True
    remove_columns: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStageConfig(Settings):
    """Where processed data is kept, and who computes it."""

    enabled: bool = True
    cache_type: Literal["hierarchical", "memory", "disk"] = "hierarchical"
    cache_dir: str = ".cache/penstock_pipeline"  # or the URL of a store
    memory_cache_size: FromZero = 100  # MB of samples that a hierarchical cache holds in memory, in front of its files
    disk_cache_expiry: Seconds | None = None  # seconds; None: never, because other data have another key
    compression: Literal["none", "gzip", "lz4", "zstd"] = "none"
    hash_fn: HashFunction = "combined"
    num_workers: FromZero = 0  # processes that build it; 0: this one
    engine: EngineName = "local"  # who runs so many workers: "ray", "dask" and "spark" spread them over a cluster
    max_shard_size: Size = "64MB"
    part_size: Size = "16MB"  # stored bytes of input that one process takes at a time
    wait: bool = True  # False: samples can be read while others are computed

    def _check(self) -> None:
        if self.compression == "lz4":
            raise ConfigError("compression='lz4' is not there for cached samples, which are MDS shards: use 'zstd'")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixStageConfig(Settings):
    """How datasets are mixed."""

    weights: Mapping[str, float] | None = None
    weight_schedule: list[WeightSchedulePoint] | None = None
    weight_schedule_type: Literal["step", "linear", "cosine"] = "step"
    weight_schedule_unit: ScheduleUnit = "samples"  # what the steps of the schedule count
    weight_schedule_batch_size: int | None = None  # samples of a batch over all ranks, if they count batches
    block_size: FromOne = 1000
    stop_strategy: Literal["restart", "first_exhausted", "all_exhausted"] = "restart"
    epochs: int | Mapping[str, int] | None = None  # how often datasets are read at most
    seed: int | None = None

    def _check(self) -> None:
        if self.weights is not None:
            exact_shares(list(self.weights.values()))
            if self.weight_schedule is not None:
                raise ConfigError("a mix has weights or a weight_schedule, not both")
        self.scheduler()

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
class PackStageConfig(Settings):
    """How documents are packed into rows."""

    enabled: bool = False
    seq_length: FromTwo = 2048
    eos_token_id: int | None = 2
    pad_token_id: int = 0
    strategy: Literal["greedy", "pool", "first_fit"] = "greedy"
    num_packers: FromOne = 4
    include_segment_ids: bool = True
    shuffle_packed: bool = True
    shuffle_buffer_factor: FromOne = 10
    long_documents: LongDocuments = "split"
    include_cu_seqlens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStageConfig(Settings):
    """How batches are loaded."""

    batch_size: FromOne = 8
    prefetch_enabled: bool = True
    prefetch_workers: FromOne = 2
    prefetch_buffer_size: FromOne = 4
    shuffle_buffer_size: FromOne | None = None
    drop_last: bool = True
    prefetch_to_device: bool = False
    shuffle: bool = False  # globally, instead of by a buffer
    uneven: Literal["drop", "pad", "allow"] = "drop"  # what ranks do with samples that they cannot share equally

    def _check(self) -> None:
        if self.shuffle and self.shuffle_buffer_size is not None:
            raise ConfigError("shuffle=True shuffles globally and needs no buffer: leave out shuffle_buffer_size=")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStageConfig(Settings):
    """Where and how results are written."""

    enabled: bool = False
    output_dir: str = "./output"
    format: SaveFormat = "parquet"
    num_shards: FromOne | None = None
    compression: str | None = None
    max_shard_size: Size = "500MB"
    overwrite: bool = False
    resume: bool = False
    push_to_hub: bool = False
    hub_repo_id: str | None = None
    hub_private: bool = False
    hub_token: str | None = field(default=None, repr=False)

    def _check(self) -> None:
        if self.push_to_hub and not self.hub_repo_id:
            raise ConfigError("push_to_hub=True needs hub_repo_id=")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig(Settings):
    """Whether and how work is spread with Ray."""

    enabled: bool = False
    num_workers: FromOne = 4
    resources_per_worker: Mapping[str, float] | None = None
    use_gpu: bool = False
    object_store_memory: FromOne | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig(Settings):
    """What a pipeline says of its progress."""

    progress_enabled: bool = True
    progress_type: ProgressType = "tqdm"
    metrics_enabled: bool = True
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_interval: FromOne = 100


@checks_making
@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig(Settings):
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

    def _check(self) -> None:
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

    @property
    def named(self) -> dict[str, DatasetConfig]:
        """All datasets by their names."""
        return dict(zip(self.names, self.datasets, strict=True))

    def get_dataset_by_name(self, name: str) -> DatasetConfig:
        """Return the dataset of a name."""
        try:
            return self.named[name]
        except KeyError:
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
        load = _yaml().safe_load if _is_yaml(path) else json.loads
        try:
            values = load(Path(path).read_text())
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except Exception as error:
            raise ConfigError(f"{path}: the text is not {'YAML' if _is_yaml(path) else 'JSON'}: {error}") from error
        try:
            return cls.from_dict(values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def save_file(self, path: str | Path) -> None:
        """Write settings to a `.json` or `.yaml` file."""
        values, is_yaml = self.to_dict(), _is_yaml(path)
        Path(path).write_text(_yaml().safe_dump(values, sort_keys=False) if is_yaml else json.dumps(values, indent=2))


# --- Plain values -------------------------------------------------------------------------------------


def read_fields(kind: type[T], given: Any, where: str = "") -> T:
    """Make settings of plain values; those within settings are read by their own classes."""
    if isinstance(given, kind):
        return given
    place = where or kind.__name__
    if not isinstance(given, Mapping):
        raise ConfigError(f"{place} is a {type(given).__name__}: give a dict of its fields")
    known = {each.name: each for each in fields(kind) if each.init}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f"do you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
            raise ConfigError(f"{place} has no field {name!r}: {hint}")
    missing = [
        name
        for name, each in known.items()
        if each.default is MISSING and each.default_factory is MISSING and name not in given
    ]
    if missing:
        raise ConfigError(f"{place} needs {', '.join(missing)}")
    hints = _hints(kind)  # type: ignore[arg-type]  # a class can be hashed
    read = {
        name: _read(hints[name], value, f"{where}.{name}" if where else name)
        for name, value in given.items()
        if not (value is None and _is_settings(hints[name]))  # a section with nothing in it has its defaults
    }
    made = kind(**read)
    check_types(made)
    return made


def write_fields(settings: Any) -> dict[str, Any]:
    """Return settings as plain values, all of them; what cannot be written, such as a function, is an error."""
    return {each.name: _write(getattr(settings, each.name), each.name) for each in fields(settings) if each.init}


def check_types(settings: Any) -> None:
    """Refuse a value that is not of the type of its field, such as the text "no" for False, or fails its check."""
    hints = _hints(type(settings))  # type: ignore[arg-type]  # a class can be hashed
    for each in fields(settings):
        name, value, kinds = each.name, getattr(settings, each.name), _kinds(hints[each.name])
        for kind in kinds if value is not None else ():
            for check in getattr(kind, "__metadata__", ()):
                check(name, value)
        if not any(_fits(value, kind) for kind in kinds):
            shown = f"={value!r:.60}" if each.repr else ""  # what is hidden may be secret
            known = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
            what = f"is unknown: use one of {', '.join(known)}" if known else f"must be {_said(kinds)}"
            raise ConfigError(f"{name}{shown} {what}")


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types of which a value may be."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return any(_fits(value, kind) for kind in _kinds(get_args(hint)[0]))
    if hint is Any:
        return True
    if origin is Literal:
        return value in get_args(hint)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str | PathLike)
    kind = origin or hint
    if isinstance(value, str):
        return False  # a sequence, but not one of several things
    return callable(value) if kind is Callable else isinstance(value, kind)


def _said(kinds: tuple[Any, ...]) -> str:
    """Name types in plain words."""
    known = {bool: "True or False", int: "a whole number", float: "a number", str: "text", type(None): "None"}
    return " or ".join(dict.fromkeys(known.get(kind) or f"a {(get_origin(kind) or kind).__name__}" for kind in kinds))


@lru_cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in fields(kind) if each.init}


def _is_yaml(path: str | Path) -> bool:
    """Distinguish YAML from JSON by the name of a file."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"{path} is neither .json nor .yaml")
    return suffix != ".json"


def _yaml() -> Any:
    return require("yaml", extra="yaml", purpose="reading and writing YAML")


def _read(hint: Any, value: Any, where: str) -> Any:
    """Read a value whose type may be settings, or a list of settings."""
    if _is_settings(hint):
        return read_fields(hint, value, where)
    for kind in (hint, *get_args(hint)):
        if _is_settings(kind) and isinstance(value, Mapping):
            return read_fields(kind, value, where)
        of_list = [inner for inner in get_args(kind) if _is_settings(inner)]
        if of_list and isinstance(value, Sequence) and not isinstance(value, str):
            return [read_fields(of_list[0], each, f"{where}[{number}]") for number, each in enumerate(value)]
    return value


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _write(value: Any, where: str) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return write_fields(value)
    if isinstance(value, Mapping):
        return {str(name): _write(each, f"{where}.{name}") for name, each in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [_write(each, where) for each in value]
    if isinstance(value, Path):
        return str(value)
    raise ConfigError(f"{where} is {value!r:.60}, which cannot be written as plain values: set it in code only")
