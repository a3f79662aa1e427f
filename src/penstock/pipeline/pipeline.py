"""`Pipeline`: stages from files to batches, described first and run when it is built."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import ConfigError, ResumeError, StageOrderError
from penstock.loaders.async_loader import AsyncDataLoader
from penstock.pipeline.cached import cache_source
from penstock.pipeline.config import (
    CacheStageConfig,
    DatasetConfig,
    LoadStageConfig,
    MixStageConfig,
    PackStageConfig,
    PipelineConfig,
    SaveStageConfig,
    TokenizeStageConfig,
)
from penstock.pipeline.fields import read_fields
from penstock.pipeline.stages import (
    check_supported,
    load_source,
    mix_sources,
    open_sources,
    pack_source,
    save_sources,
    tokenize_sources,
    tokenizer_of,
)
from penstock.sources.composite import CompositeShardedSource
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from typing_extensions import Self

    from penstock.pipeline.saving.writer import WriteStats
    from penstock.sources.base import ShardedSource

STAGES = ("source", "tokenize", "cache", "mix", "pack", "save", "load")

T = TypeVar("T")


class Pipeline:
    """Stages from files to batches. Nothing is read until `build`, which gives a source or, after `load`, a loader.

        pipeline = Pipeline.from_config({"datasets": [{"data_files": "data/*.parquet"}], "load": {"batch_size": 32}})
        loader = pipeline.source().load().build()

    Stages come in this order, each at most once: source, tokenize, cache, mix, pack, save, load. All but the first may
    be left out. A stage takes its settings from the configuration, or those that you give it. Iterate over the pipeline
    itself or over what `build` gives; each pass is the next epoch. After `load`, it has a state.
    """

    def __init__(self, config: PipelineConfig) -> None:
        check_supported(config)
        self.config = config
        self._stages: dict[str, Any] = {}
        self._built: ShardedSource | AsyncDataLoader | None = None
        self._saved: dict[str, WriteStats] = {}

    @classmethod
    def from_config(cls, config: PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]) -> Self:
        """Make a pipeline of settings, of a dict with them, or of a `.json` or `.yaml` file."""
        if isinstance(config, (str, os.PathLike)):
            return cls(PipelineConfig.load_file(Path(config)))
        return cls(config if isinstance(config, PipelineConfig) else PipelineConfig.from_dict(config))

    # --- Stages -----------------------------------------------------------------------------------------------

    def source(self) -> Self:
        """Read the files of all datasets."""
        return self._add("source", self.config.source)

    def tokenize(self, config: TokenizeStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Make tokens of the text of each dataset, with its tokenizer or the default one."""
        chosen = _settings(TokenizeStageConfig, config, self.config.tokenize)
        for name, dataset in zip(self.config.names, self.config.datasets, strict=True):
            tokenizer_of(name, dataset, chosen, self.config.default_tokenizer)  # or it says that there is none
        return self._add("tokenize", chosen)

    def cache(self, config: CacheStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Keep what each dataset gives up to here, under its fingerprint."""
        return self._add("cache", _settings(CacheStageConfig, config, self.config.cache))

    def mix(self, config: MixStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Mix the datasets by weights. Without this stage they follow one another."""
        return self._add("mix", _settings(MixStageConfig, config, self.config.mix))

    def pack(self, config: PackStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Pack tokenized documents into rows, if the settings say `enabled`."""
        return self._add("pack", _settings(PackStageConfig, config, self.config.pack))

    def save(self, config: SaveStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Write what there is up to here to files, when the pipeline is built, if the settings say `enabled`."""
        return self._add("save", _settings(SaveStageConfig, config, self.config.save))

    def load(self, config: LoadStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Load batches."""
        return self._add("load", _settings(LoadStageConfig, config, self.config.load))

    def get_stages(self) -> list[str]:
        """Give the names of the stages."""
        return list(self._stages)

    @property
    def saved(self) -> dict[str, WriteStats]:
        """What the save stage wrote, by dataset."""
        return dict(self._saved)

    def _add(self, stage: str, config: Any) -> Self:
        if self._built is not None:
            raise StageOrderError(f"the pipeline is built already: make a new one to add {stage}()")
        wanted = [each for each in STAGES if each in (*self._stages, stage, "source")]
        right = "".join(f".{each}()" for each in wanted)
        if stage in self._stages:
            raise StageOrderError(f"{stage}() is there already, and each stage comes once: {right}")
        if wanted[-1] != stage or (stage != "source" and "source" not in self._stages):
            raise StageOrderError(f"{stage}() is in the wrong place: write {right}")
        check_supported(replace(self.config, **{stage: config}))  # which also checks that it fits the datasets
        if getattr(config, "enabled", True) is False:
            kind = type(config).__name__
            warn_user(f"{stage}() does nothing, because its settings are off: pass {kind}(enabled=True, …)")
        self._stages[stage] = config
        return self

    # --- Running ----------------------------------------------------------------------------------------------

    def build(self) -> ShardedSource | AsyncDataLoader:
        """Run the stages, once: give a loader if there is `load`, else a source of all datasets."""
        if self._built is None:
            if "source" not in self._stages:
                raise StageOrderError("a pipeline begins with source(): write .source().load().build()")
            self._built = self._run()
        return self._built

    def _run(self) -> ShardedSource | AsyncDataLoader:
        config, stages = self.config, self._stages
        sources = open_sources(config)
        if "tokenize" in stages:
            sources = tokenize_sources(sources, config, stages["tokenize"])
        if "cache" in stages and ("tokenize" not in stages or stages["tokenize"].cache_tokenized):
            for name, dataset in zip(config.names, config.datasets, strict=True):
                if dataset.cache_enabled:
                    sources[name] = cache_source(sources[name], stages["cache"], dataset.cache_path)
        if "mix" in stages and len(sources) > 1:
            sources = {"mixed": mix_sources(sources, stages["mix"], config.seed)}
        if "pack" in stages and stages["pack"].enabled:
            sources = {name: pack_source(source, stages["pack"], config.seed) for name, source in sources.items()}
        if "save" in stages and stages["save"].enabled:
            self._saved = save_sources(sources, config, stages["save"])
        every = list(sources.values())
        source = every[0] if len(every) == 1 else CompositeShardedSource(every)
        return load_source(source, stages["load"], config.seed) if "load" in stages else source

    def __iter__(self) -> Iterator[Any]:
        """Begin the next pass over what `build` gives."""
        return iter(self.build())

    def __len__(self) -> int:
        """Count the batches, or the samples if there is no `load`; an error if that is not known."""
        return len(self.build())

    def __bool__(self) -> bool:
        return True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._loader().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Describe the position after the batch that you took last, as plain JSON values."""
        return {"stages": self.get_stages(), "loader": self._loader().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next pass."""
        loader = self._loader()
        if not isinstance(state, Mapping) or "loader" not in state:
            raise ResumeError("this is not the state of a pipeline")
        if state.get("stages") != self.get_stages():
            raise ResumeError(f"the state is of the stages {state.get('stages')}, and these are {self.get_stages()}")
        loader.load_state_dict(state["loader"])

    def _loader(self) -> AsyncDataLoader:
        built = self.build()
        if not isinstance(built, AsyncDataLoader):
            raise StageOrderError("a pipeline has epochs and a state after load(): add it before build()")
        return built


def create_pipeline(
    datasets: Sequence[DatasetConfig | Mapping[str, Any] | str] | DatasetConfig | Mapping[str, Any] | str,
    default_tokenizer: Any = None,
    **settings: Any,
) -> Pipeline:
    """Make a pipeline of datasets: settings, dicts of them, or just their files; further fields of `PipelineConfig`."""
    given = [datasets] if isinstance(datasets, (DatasetConfig, Mapping, str)) else list(datasets)
    made = [DatasetConfig(data_files=each) if isinstance(each, str) else each for each in given]
    return Pipeline.from_config({"datasets": made, "default_tokenizer": default_tokenizer, **settings})


def _settings(kind: type[T], given: T | Mapping[str, Any] | None, default: T) -> T:
    if given is None:
        return default
    if not isinstance(given, (kind, Mapping)):
        raise ConfigError(f"the settings are a {type(given).__name__}: give a {kind.__name__}, or a dict of its fields")
    return read_fields(kind, given)
