"""`Pipeline`: stages from files to batches, described first and run when it is built."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, ResumeError, StageOrderError
from penstock.loaders.async_loader import AsyncDataLoader
from penstock.order.state_fields import check_fields
from penstock.pipeline.caching import CacheStage
from penstock.pipeline.config import DatasetConfig, PipelineConfig, read_fields
from penstock.pipeline.save import SaveStage
from penstock.pipeline.stages import (
    BaseStage,
    MixStage,
    PackStage,
    PipelineContext,
    SourceStage,
    TokenizeStage,
    joined,
)
from penstock.units import checks_making
from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Generator

    from typing_extensions import Self

    from penstock.loaders.async_loader import Output
    from penstock.pipeline.config import (
        CacheStageConfig,
        LoadStageConfig,
        MixStageConfig,
        PackStageConfig,
        SaveStageConfig,
        SourceStageConfig,
        TokenizeStageConfig,
    )
    from penstock.pipeline.stages import Data
    from penstock.publish.dataset_writer import WriteStats
    from penstock.sources.base import ShardedSource


class ObservedLoader(AsyncDataLoader):
    """An `AsyncDataLoader` that tells the pipeline how far it is, as `ObservabilityConfig` says."""

    context: PipelineContext

    def __iter__(self) -> Generator[Any]:
        """Begin the next pass, or go on where a loaded state says."""
        context, batches = self.context, super().__iter__()
        context.step = 0
        with context.observer.watch("load", "loader", unit="batches", has_bar=False) as work:
            try:
                for batch in batches:
                    if context.step == 0:
                        context.epoch = int(self.state_dict().get("epoch", 0))
                    context.step += 1
                    work.add(1)
                    yield batch
            except GeneratorExit:
                return  # who stops early has not failed
            finally:
                batches.close()
                context.observer.set("load/loader", seconds_waiting=self.stats().seconds_waiting)


class LoadStage(BaseStage):
    """Loads batches of all sources."""

    name = "load"

    def process(self, data: Data, context: PipelineContext) -> Any:
        """Make the loader."""
        output: Output = "jax" if self.config.prefetch_to_device else "numpy"
        how = self.config.arguments("prefetch_to_device")
        loader = ObservedLoader(joined(data), **how, seed=context.seed, output=output)
        loader.context = context
        return {"loader": loader}


STAGES = {
    "source": SourceStage,
    "tokenize": TokenizeStage,
    "cache": CacheStage,
    "mix": MixStage,
    "pack": PackStage,
    "save": SaveStage,
    "load": LoadStage,
}


@checks_making
class Pipeline:
    """Stages from files to batches. Nothing is read until `build`, which gives a source or, after `load`, a loader.

        pipeline = Pipeline.from_config({"datasets": [{"data_files": "data/*.parquet"}], "load": {"batch_size": 32}})
        loader = pipeline.source().load().build()

    Stages come in this order, each at most once: source, tokenize, cache, mix, pack, save, load. All but the first may
    be left out, and stages of your own may stand between them. A stage takes its settings from the configuration, or
    those that you give it. Iterate over the pipeline itself or over what `build` gives; each pass is the next epoch.
    After `load`, it has a state.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self._stages: dict[str, BaseStage] = {}
        self._context = PipelineContext(config, config.seed)
        self._data: Data | None = None

    @classmethod
    def from_config(cls, config: PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]) -> Self:
        """Make a pipeline of settings, of a dict with them, or of a `.json` or `.yaml` file."""
        if isinstance(config, (str, os.PathLike)):
            return cls(PipelineConfig.load_file(Path(config)))
        return cls(config if isinstance(config, PipelineConfig) else PipelineConfig.from_dict(config))

    # --- Stages -----------------------------------------------------------------------------------------------

    def source(self, config: SourceStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Read the files of all datasets."""
        return self._add_known("source", config)

    def tokenize(self, config: TokenizeStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Make tokens of the text of each dataset, with its tokenizer or the default one."""
        return self._add_known("tokenize", config)

    def cache(self, config: CacheStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Keep what each dataset gives up to here, under its fingerprint."""
        return self._add_known("cache", config)

    def mix(self, config: MixStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Mix the datasets by weights. Without this stage they follow one another."""
        return self._add_known("mix", config)

    def pack(self, config: PackStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Pack tokenized documents into rows, if the settings say `enabled`."""
        return self._add_known("pack", config)

    def save(self, config: SaveStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Write what there is up to here to files, when the pipeline is built, if the settings say `enabled`."""
        return self._add_known("save", config)

    def load(self, config: LoadStageConfig | Mapping[str, Any] | None = None) -> Self:
        """Load batches."""
        return self._add_known("load", config)

    def add(self, stage: BaseStage) -> Self:
        """Add a stage of your own here: it is given what the stages before it give."""
        if not isinstance(stage, BaseStage) or not getattr(stage, "name", ""):
            raise ConfigError("a stage of your own inherits from BaseStage, and has a name")
        if stage.name in STAGES:
            raise ConfigError(f"{stage.name!r} is the name of a stage that there is: choose another")
        return self._add(stage)

    def get_stages(self) -> list[str]:
        """Return the names of the stages."""
        return list(self._stages)

    def get_context(self) -> PipelineContext:
        """Return what the stages share: settings, seed, and what was counted."""
        return self._context

    def get_data(self) -> Data:
        """Return what the last stage gave, by dataset; builds the pipeline."""
        self.build()
        return dict(self._data or {})

    @property
    def saved(self) -> dict[str, WriteStats]:
        """What the save stage wrote, by dataset."""
        stage = self._stages.get("save")
        return dict(stage.saved) if isinstance(stage, SaveStage) else {}

    def _add_known(self, name: str, given: Any) -> Self:
        settings = getattr(self.config, name)
        return self._add(STAGES[name](settings if given is None else read_fields(type(settings), given)))

    def _add(self, stage: BaseStage) -> Self:
        name, config = stage.name, stage.config
        self._check_place(name)
        whole = replace(self.config, **{name: config}) if name in STAGES else self.config
        if problems := stage.validate_config(whole):  # whose making has checked that it fits the datasets
            raise ConfigError("; ".join(problems))
        if name in STAGES and getattr(config, "enabled", True) is False:
            kind = type(config).__name__
            warn_user(f"{name}() does nothing, because its settings are off: pass {kind}(enabled=True, …)")
        self._stages[name] = stage
        if name in STAGES:
            self.config = self._context.config = whole
        return self

    def _check_place(self, name: str) -> None:
        if self._data is not None:
            raise StageOrderError(f"the pipeline is built already: make a new one to add {name}()")
        is_own = name not in STAGES
        standing = [each for each in self._stages if each in STAGES]
        wanted = [each for each in STAGES if each in (*standing, name, "source")]
        right = "".join(f".{each}()" for each in wanted)
        if name in self._stages:
            raise StageOrderError(f"{name}() is there already, and each stage comes once: {right}")
        if is_own and (not standing or "load" in standing):
            raise StageOrderError(f"{name} is in the wrong place: stages of your own stand between source() and load()")
        if not is_own and (wanted[-1] != name or (name != "source" and "source" not in standing)):
            raise StageOrderError(f"{name}() is in the wrong place: write {right}")

    # --- Running ----------------------------------------------------------------------------------------------

    def build(self) -> ShardedSource | AsyncDataLoader:
        """Run the stages, once: give a loader if there is `load`, else a source of all datasets."""
        if self._data is None:
            if "source" not in self._stages:
                raise StageOrderError("a pipeline begins with source(): write .source().load().build()")
            self._check_ray()
            data: Data = {}
            for name, stage in self._stages.items():
                if name != "cache" or self._caches:
                    data = stage.process(data, self._context)
            self._data = data
        loader = self._data.get("loader")
        return loader if isinstance(loader, AsyncDataLoader) else joined(self._data)

    @property
    def _caches(self) -> bool:
        tokenize = self._stages.get("tokenize")
        return tokenize is None or bool(tokenize.config.cache_tokenized)

    def _check_ray(self) -> None:
        if not self.config.ray.enabled:
            return
        cache = self._stages.get("cache")
        if cache is None or not cache.config.enabled or cache.config.cache_type == "memory" or not self._caches:
            raise ConfigError(
                "Ray spreads what cache() computes and writes to files: add .cache() after .tokenize(), with a"
                " cache_dir= that all machines share, or leave out ray="
            )

    def __iter__(self) -> Iterator[Any]:
        """Begin the next pass over what `build` gives."""
        return iter(self.build())

    def __len__(self) -> int:
        """Count the batches, or the samples if there is no `load`; an error if that is not known."""
        return len(self.build())

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:
        """Stop what runs in the background, such as the building of a cache."""
        for source in (self._data or {}).values():
            if not isinstance(source, AsyncDataLoader):
                source.close()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._loader().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Describe the position after the batch that you took last, as plain JSON values."""
        return {"stages": self.get_stages(), "loader": self._loader().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state with the next pass."""
        loader = self._loader()
        check_fields(state, {"stages": [str], "loader": dict}, "a Pipeline")
        if list(state["stages"]) != self.get_stages():
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
