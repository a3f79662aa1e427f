"""WebVid: videos with captions. The videos are inside the shards, or beside them, a file each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.cache.proxied import open_proxied
from penstock.data.dataset import StreamingDataset
from penstock.data.pass_readers import PassReaders
from penstock.errors import CorruptShardError
from penstock.files import read_file
from penstock.processes import PerProcess
from penstock.reading.source import JoinedSources, ShardRange
from penstock.storage.base import check_key
from penstock.storage.retry import RetryPolicy
from penstock.threads import WorkerThreads

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.data.stream import DatasetSettings
    from penstock.reading.source import Source
    from penstock.types import Int64Array, Sample

_THREADS = 16  # that fetch videos
_SAMPLES_AHEAD = 256  # unless `predownload` says so


class StreamingInsideWebVid(StreamingDataset):
    """WebVid with its videos inside the shards: `content` is the bytes of a video."""


class StreamingOutsideGIWebVid(StreamingDataset):
    """WebVid with its videos beside the shards, each fetched when its sample is asked for.

    Samples name a file as `content_path`. With `extra_remote` or `extra_local`, they have its bytes as `content`.

    Args:
        extra_local: The folder in which fetched videos are kept; without `extra_remote`, where they are.
        extra_remote: The folder or URL of the videos.
        **options: All that `StreamingDataset` takes.
    """

    def __init__(self, *, extra_local: str | None = None, extra_remote: str | None = None, **options: Any) -> None:
        self.extra_local, self.extra_remote = extra_local, extra_remote
        retry = RetryPolicy.of(options.get("download_retry"), options.get("download_timeout"))
        extra = (
            None if extra_remote is None else open_proxied(extra_remote, options.get("storage_options"), retry=retry)
        )
        self._extra_store = extra
        super().__init__(**options)

    def get_item(self, sample_id: int, *retry: Any, **named: Any) -> Any:
        """Return a sample with its video."""
        sample = super().get_item(sample_id, *retry, **named)
        if self.extra_local is None and self._extra_store is None:
            return sample
        name, size = sample["content_path"], sample.get("content_size")
        content = self.read_extra(name)
        if size is not None and len(content) != size:
            if self.extra_local is not None and self._extra_store is not None:
                (Path(self.extra_local) / name).unlink(missing_ok=True)  # the next one who asks fetches it
            raise CorruptShardError(f"the video {name} has {len(content)} bytes instead of {size}", file=name)
        return {**sample, "content": content}

    def read_extra(self, name: str) -> bytes:
        """Read a video; if it is not here yet, fetch it."""
        if self._extra_store is not None and self.extra_local is None:
            return bytes(self._extra_store.read(check_key(name)))
        self.fetch_extra(name)
        return read_file(Path(self.extra_local or "") / check_key(name))

    def fetch_extra(self, name: str) -> None:
        """Fetch a video to the folder where they are kept, if it is not there; it appears whole or not at all."""
        path = Path(self.extra_local or "") / check_key(name)
        if self._extra_store is not None and not path.exists():
            self._extra_store.download(name, path)


class StreamingOutsideDTWebVid(StreamingOutsideGIWebVid):
    """WebVid with its videos beside the shards, fetched ahead of the training step, `predownload` samples before it.

    Without `extra_local` and `extra_remote`, or for samples by number, it does what `StreamingOutsideGIWebVid` does.
    """

    def _open(self, settings: DatasetSettings, batch_size: int | None) -> None:
        super()._open(settings, batch_size)
        self._ahead = PerProcess(_Ahead)
        if self.extra_local is not None and self._extra_store is not None:
            wanted = _SAMPLES_AHEAD if self.predownload is None else self.predownload
            source = _AnnouncedSource(self._opened.source, wanted, partial(_begin, self))
            self._opened = replace(self._opened, source=source)
            self.readers = PassReaders(self.run, source, self._opened.first_ids, settings.reading, self.counters)

    def fetch_extra(self, name: str) -> None:
        """Wait for a video that is being fetched already, or fetch it now."""
        begun = self._ahead.get().begun.pop(name, None)
        if begun is None or begun.cancel() or begun.exception() is not None:
            super().fetch_extra(name)

    def close(self) -> None:
        """Close all that is open, and fetch no more videos ahead."""
        ahead = self._ahead.forget()
        if ahead is not None:
            ahead.threads.shutdown()
            ahead.names.shutdown()
        super().close()


class _Ahead:
    """The threads of a process that fetch videos, and what they have begun with."""

    def __init__(self) -> None:
        self.names = WorkerThreads(1, "penstock-video-names")
        self.threads = WorkerThreads(_THREADS, "penstock-videos")
        self.begun: dict[str, Future[None]] = {}


class _AnnouncedSource(JoinedSources):
    """A source that passes on which samples are coming."""

    def __init__(self, source: Source, samples_ahead: int, announce: Any) -> None:
        super().__init__([ShardRange(source, 0, len(source.spans))])
        self._num_ahead, self._announce = samples_ahead, announce

    @property
    def samples_ahead(self) -> int:
        """How many samples before they are read."""
        return max(self._num_ahead, super().samples_ahead)

    def announce(self, ids: Int64Array, *, is_first: bool) -> None:
        """Pass on the samples that are coming."""
        super().announce(ids, is_first=is_first)
        self._announce(ids, is_first=is_first)


def _begin(dataset: StreamingOutsideDTWebVid, ids: Int64Array, *, is_first: bool) -> None:
    """Have the names of some samples' videos read in the background, and these then fetched."""
    ahead = dataset._ahead.get()
    if is_first:
        for future in ahead.begun.values():
            future.cancel()
        ahead.begun.clear()
    ahead.names.submit(_begin_now, dataset, ahead, np.array(ids))


def _begin_now(dataset: StreamingOutsideDTWebVid, ahead: _Ahead, ids: Int64Array) -> None:
    with dataset.readers.here.borrow_reader() as reader:
        samples: list[Sample] = reader.read(ids, by_column=False).samples()
    for sample in samples:
        name = sample["content_path"]
        if name not in ahead.begun and not (Path(dataset.extra_local or "") / check_key(name)).exists():
            ahead.begun[name] = ahead.threads.submit(StreamingOutsideGIWebVid.fetch_extra, dataset, name)
