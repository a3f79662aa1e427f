"""`Stream`: one dataset among those that are mixed, with its weight; and the settings that a dataset gives to all."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.codecs.digest import check_hashes
from penstock.data.ranks import SeatSettings
from penstock.errors import ConfigError
from penstock.formats.base import ReadOptions
from penstock.index.paths import INDEX_NAME
from penstock.order.make_plan import RunSettings, count_epoch
from penstock.order.schedule import MixSchedule
from penstock.order.weights import StreamWeight
from penstock.reading.pass_reader import PassOptions
from penstock.reading.source import KeepsRows, ReadsFiles
from penstock.registry import Registry
from penstock.storage.base import resolve_store, shown_url, url_scheme
from penstock.storage.local import LocalStore
from penstock.storage.url_names import join_url
from penstock.units import check_bool, check_mapping, check_seconds, check_whole, checks_call, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.order.options import StreamShards
    from penstock.reading.kept_rows import KeptRows
    from penstock.reading.source import MakesSource, Source
    from penstock.reading.transforms import SampleTransform
    from penstock.scan.patterns import Given

T = TypeVar("T")

stream_classes: Registry[Any] = Registry(
    "stream", group="penstock.streams", builtin={"stream": "penstock.data.stream:Stream"}
)


class Stream:
    """A dataset in a store, on this machine, or both, and how much of it an epoch takes.

        StreamingDataset(streams=[Stream(remote="s3://bucket/web", proportion=0.9), Stream(remote="s3://bucket/books",
            proportion=0.1)])

    Settings that you do not give a stream are taken from its `StreamingDataset`. Once the dataset is made,
    `proportion`, `repeat` and `choose` are all filled in: each says how much of the stream an epoch takes.

    Args:
        remote: Where the dataset is: a URL or a path of a folder, of a file, with `*` for several, or a list of these.
        local: The folder in which fetched shards are kept; without a remote, where the dataset is. By default shards
            are kept in a folder of your user cache, which all jobs share.
        split: A folder below both; of a dataset of the Hugging Face Hub, one of its splits.
        format: What kind of files these are: `parquet`, `jsonl`, `csv`, `tsv`, `arrow`, `webdataset`, `text`, or `mds`
            for a dataset with an index; by default, names and first bytes tell.
        types: What the columns of csv files hold, such as `{"price": "float", "count": "int"}`; others are text.
        subset: Of a dataset of the Hugging Face Hub, one of its subsets (also called configurations).
        proportion: Share of an epoch, relative to the other streams' proportions.
        repeat: How often an epoch takes the whole stream: 0.5 takes half of the samples, 2 takes all of them twice.
        choose: How many samples an epoch takes.
        download_retry: How often in a row a request is tried again after a temporary failure; 0 means a single try.
        download_timeout: Seconds without a single byte. penstock gives up when these and all tries are used up.
        validate_hash: Name of the digest to check on each fetched file, and on files that are already there. Without
            it, each fetched file is checked with the quickest digest in the index, if there is any.
        keep_zip: Keep the compressed files of shards, too.
        name: The name of the stream in states; by default its number. Give names to streams that you may add or remove
            during a run.
        storage_options: Credentials and settings of the store, under the names that fsspec uses.
        sample_transform: Your function, called on each sample of this stream as it is read; it returns what takes its
            place. It runs in the workers of the loader.
        source: Where samples come from, instead of `remote`: any `ShardedSource` that has a fingerprint and an end, a
            `StreamingDataset`, a `Source` of your own, or the name of one that a package registered, which is called
            with this stream.
        samples: The old name of `choose`.
    """

    @checks_call
    def __init__(
        self,
        *,
        remote: Given | None = None,
        local: Given | None = None,
        split: str | None = None,
        format: str | None = None,  # noqa: A002  what users call it
        types: Mapping[str, str] | None = None,
        subset: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | float | str | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
        name: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        sample_transform: SampleTransform | None = None,
        source: Source | MakesSource | str | None = None,
        samples: int | float | str | None = None,
    ) -> None:
        self.patterns: tuple[str, ...] | None = None  # of a list, what to look for below the folder that holds all
        self.queries: dict[str, str] = {}  # of files on the web, by their URLs; they may be secrets
        self.window: int | None = None  # how many shards are shuffled together, if the maker of the source knows
        self.remote = self._place(remote, is_data=True)
        self._local = self._place(local, is_data=remote is None)
        if not self.remote and not self._local and source is None:
            raise ConfigError("a stream needs a remote, a local folder, or both")
        if not isinstance(split, str | None):
            raise ConfigError(
                f"split={split!r:.100} is not a name: pass the name of a folder, or of a split of the Hub"
            )
        self.split = split or ""
        self.format, self.types, self.subset = format, types, subset
        self.weight = StreamWeight.of(proportion=proportion, repeat=repeat, choose=choose, samples=samples)
        self.proportion = self.weight.proportion
        self.repeat = self.weight.repeat
        self.choose = self.weight.choose
        check_downloads(download_retry, download_timeout)
        check_bool("keep_zip", keep_zip)
        check_mapping("storage_options", storage_options)
        self.download_retry = download_retry
        self.download_timeout = download_timeout
        self.validate_hash = None if validate_hash is None else check_hashes(validate_hash)[0]
        self.keep_zip = keep_zip
        self.name = name
        self.storage_options = storage_options
        self.sample_transform = sample_transform
        self.columns: tuple[str, ...] | None = None  # of a source that reads some columns only
        view = source.as_view() if isinstance(source, KeepsRows) else None
        source, self._find_kept = (source, None) if view is None else view
        self.source = None if self._adopt_files(source) else source

    def __repr__(self) -> str:
        shown = ("remote", "local" if self._local else "split", "split", "proportion", "repeat", "choose", "name")
        values = {name: getattr(self, name) for name in shown if getattr(self, name) not in (None, "")}
        values |= {name: shown_url(values[name]) for name in ("remote", "local") if name in values}
        return f"Stream({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @property
    def kept(self) -> KeptRows | None:
        """The rows that are read, of a view; None: all."""
        return None if self._find_kept is None else self._find_kept()

    def _adopt_files(self, source: Source | MakesSource | str | None) -> bool:
        """Read the files of a source in place, if they are files that can be read so; tell whether they are."""
        files = source.as_files() if isinstance(source, ReadsFiles) else None
        if files is None:
            return False
        self.remote = self._place(files.urls, is_data=True)
        self.queries = dict(files.queries)
        self.format, self.types, self.columns = files.format, files.types, files.columns
        self.storage_options = self.storage_options or files.storage_options
        return True

    def options(self, common: ReadOptions) -> ReadOptions:
        """Return how values are read: as in the whole dataset, but for columns that the source leaves out."""
        if self.columns is None:
            return common
        lacking = [name for name in common.columns or () if name not in self.columns]
        if lacking:
            raise ConfigError(
                f"columns= names {', '.join(lacking)}, but the source of a stream reads {', '.join(self.columns)} only"
            )
        return common if common.columns is not None else replace(common, columns=self.columns)

    def _place(self, given: Given | None, *, is_data: bool) -> str | None:
        """Return the place of the data, or of their copies, as one path or URL."""
        if given is None:
            return None
        if not isinstance(given, str | os.PathLike | Iterable):
            raise ConfigError(f"{given!r:.100} is not a place: pass a path, a URL, or a list of these")
        if isinstance(given, str | os.PathLike) and url_scheme(os.fspath(given)) is None:
            return os.fspath(given)
        from penstock.scan.patterns import find_source, is_list, take_queries  # a path of this machine needs none

        if is_data:
            given, self.queries = take_queries(given)
        if not is_list(given):
            return os.fspath(given)  # type: ignore[arg-type]
        if not is_data:
            raise ConfigError("local= is the folder for copies of the remote files: pass one folder, not a list")
        source = find_source(given, ())
        self.patterns = source.patterns
        return source.root

    def apply_default(self, defaults: Mapping[str, Any]) -> None:
        """Take from the dataset what was left out here."""
        for name, value in defaults.items():
            if getattr(self, name) in (None, ""):
                setattr(self, name, value)
        self.split = self.split or ""

    def adopt_revision(self, commit: str) -> bool:
        """Read another commit of a repository from now on, unless the user named one; tell whether that is so."""
        if self.remote is None or url_scheme(self.remote) != "hf":
            return False
        from penstock.order.state_fields import refuse
        from penstock.storage.hub_location import at_revision, is_commit, parse_hub_url

        if not is_commit(commit):
            raise refuse("revisions", commit, "a commit for each stream")
        named = parse_hub_url(self.remote)[2] or (self.storage_options or {}).get("revision")
        if is_commit(named) or (self.storage_options or {}).get("revision"):
            return False
        self.remote = at_revision(self.remote, commit)
        return True

    @property
    def url(self) -> str | None:
        """The remote, with the split."""
        return join_url(self.remote, self.split.strip("/")) if self.remote and self.split else self.remote

    @property
    def folder(self) -> Path | None:
        """The local folder, with the split."""
        return None if self._local is None else Path(self._local).expanduser() / (self.split or "")

    @property
    def local(self) -> str | None:
        """The folder in which its files are, or will be; None: a source of its own has none."""
        return self._local if self._local is not None or self.remote is None else _default_folder(self.remote)

    @local.setter
    def local(self, folder: str | None) -> None:
        self._local = folder

    def choose_folder(self, root: str | None = None) -> None:
        """Set in `local` where the files of the stream are, below a root, if the user left that open."""
        place = root or self.remote
        if self._local is None and place is not None:
            self._local = _default_folder(place)

    @property
    def described_place(self) -> str:
        """Where the data are, in words that are the same on all nodes: each may have its own folder for the same."""
        place = self.url or str(self.folder)
        return Path(place).name if url_scheme(place) in (None, "file") else shown_url(place)

    @property
    def place(self) -> str:
        """Where its files are: the remote or, without one, the local folder."""
        return self.remote or self._local or ""

    @property
    def is_here(self) -> bool:
        """Whether its files are on this machine, and in no store."""
        return self.source is None and url_scheme(self.place) in (None, "file")

    @property
    def in_place(self) -> Path | None:
        """Where the dataset can be read as it lies: without a remote, or with one of this machine and no local."""
        if self.remote is None:
            return self.folder
        if url_scheme(self.remote) not in (None, "file"):
            return None
        there = LocalStore.from_url(str(self.url)).root
        if self.folder is None or self.folder.absolute() == there.absolute():
            return there
        return None

    @property
    def is_dataset_here(self) -> bool:
        """Whether this is plainly a folder of this machine with an index; it may still be one if not."""
        folder = self.in_place
        is_said = (
            self.format not in (None, "mds") or self.patterns or self.queries or self.types is not None or self.subset
        )
        return folder is not None and not is_said and os.path.exists(folder / INDEX_NAME)  # noqa: PTH110  no errors


def check_downloads(download_retry: int | None, download_timeout: float | None) -> None:
    """Refuse numbers of tries and times to wait that are none."""
    check_whole("download_retry", download_retry, 0)
    check_seconds("download_timeout", download_timeout)


def _default_folder(place: str) -> str:
    """Return the folder of data for which the user names none: on this machine, their own."""
    if url_scheme(place) in (None, "file"):
        return str(LocalStore.from_url(place).root)
    from penstock.cachedir.layout import default_directory

    return str(default_directory(place, None))


def apply_defaults(streams: Sequence[Stream], defaults: Mapping[str, Any]) -> None:
    """Fill in what each stream left out. Options of stores are not for local files, and must be for some stream."""
    options = defaults.get("storage_options")
    for stream in streams:
        if stream.is_here:
            are_for_none = all(each.is_here for each in streams)
            resolve_store(stream.place, stream.storage_options or (options if are_for_none else None))  # which refuses
        stream.apply_default({**defaults, "storage_options": None} if stream.is_here else defaults)


def fill_weights(streams: Sequence[Stream], shards: Sequence[StreamShards], settings: RunSettings) -> int:
    """Set in every way how much of each stream an epoch takes, and return how many samples that is altogether."""
    counts = count_epoch(shards, settings)
    for stream, part, count in zip(streams, shards, counts, strict=True):
        stream.choose = count
        stream.repeat = count / part.num_samples if part.num_samples else 0.0
        stream.proportion = count / sum(counts) if count else 0.0
    return sum(counts)


def gather_streams(given: Mapping[str, Any]) -> list[Stream]:
    """Return the streams of a dataset by its arguments: those that were given, or the one that the others describe."""
    place = {"remote": given["remote"], "local": given["local"]}
    is_placed = place != {"remote": None, "local": None}
    if given["streams"]:
        _check_streams(given["streams"])
        if is_placed:
            raise ConfigError(
                "streams= and remote= or local= exclude each other: each stream has its own remote and local"
            )
        return list(given["streams"])
    if not is_placed:
        raise ConfigError("a StreamingDataset needs streams, or a remote, a local folder, or both")
    return [stream_classes.get(given["stream_name"])(**place, split=given["split"], **(given["stream_config"] or {}))]


def _check_streams(streams: Any) -> None:
    """Refuse what is not a list of streams."""
    if isinstance(streams, str | os.PathLike | Stream):
        raise ConfigError(f"streams= takes a list, not a single {type(streams).__name__}: write streams=[Stream(…), …]")
    for each in streams:
        if not isinstance(each, Stream):
            raise ConfigError(f"streams= holds a {type(each).__name__}, not a Stream: write Stream(remote=…) for it")


# --- The settings of a dataset, each of which has one home -----------------------------------------------------------

# What streams take from their dataset where they leave it out.
STREAM_DEFAULTS = (
    "split",
    "format",
    "types",
    "subset",
    "download_retry",
    "download_timeout",
    "validate_hash",
    "keep_zip",
    "storage_options",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSettings:
    """How a dataset orders, reads, decodes and shares out its samples."""

    order: RunSettings
    reading: PassOptions
    decoding: ReadOptions
    seat: SeatSettings
    stream_defaults: dict[str, Any]

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> DatasetSettings:
        """Sort the arguments of a dataset, given by name; those that are not settings are left alone."""
        given = dict(arguments)
        columns, cache_limit, hash_name = given["columns"], given["cache_limit"], given["validate_hash"]
        if isinstance(columns, str):
            raise ConfigError(f"columns={columns!r} is a string: pass a list of column names")
        check_whole("batch_size", given["batch_size"], 1)
        check_whole("predownload", given["predownload"], 0)
        for name in ("shuffle", "keep_zip", "columnar", "allow_unsafe_types", "allow_mix_change", "seed_globals"):
            check_bool(name, given[name])
        for name in ("storage_options", "stream_config"):
            check_mapping(name, given[name])
        check_downloads(given["download_retry"], given["download_timeout"])
        if given["schedule"] is not None:
            given["schedule"] = MixSchedule.of(given["schedule"])
        predownload, batch_size = given["predownload"], given["batch_size"]
        if predownload is not None and batch_size is not None and predownload < batch_size:
            warnings.warn(
                f"predownload={predownload} is less than batch_size={batch_size}, so each batch waits for its shards:"
                f" set it to {batch_size} or more, or leave out predownload",
                stacklevel=3,
            )
        given["columns"] = None if columns is None else tuple(columns)
        given["cache_limit"] = None if cache_limit is None else parse_bytes(cache_limit)
        given["validate_hash"] = None if hash_name is None else check_hashes(hash_name)[0]
        given["order"] = given["order"] or os.environ.get("PENSTOCK_ORDER")  # for code that cannot be changed
        return cls(
            order=_take(RunSettings, given),
            reading=_take(PassOptions, given),
            decoding=_take(ReadOptions, given),
            seat=_take(SeatSettings, given),
            stream_defaults={name: given[name] for name in STREAM_DEFAULTS},
        )


def _take(kind: type[T], given: Mapping[str, Any]) -> T:
    """Make options of a kind from the arguments that bear the names of its fields."""
    return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})  # type: ignore[arg-type]
