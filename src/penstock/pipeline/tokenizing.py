"""`tokenize_and_save` and `pretokenize`: tokens made once and written to files, for all runs to come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.pipeline.config import DatasetConfig, ObservabilityConfig
from penstock.pipeline.config_sources import create_source
from penstock.pipeline.observing import Observer
from penstock.pipeline.save import save_dataset
from penstock.sources.tokens.source import TokenizedShardedSource
from penstock.sources.tokens.tokenizers import TokenizerConfig
from penstock.units import check_whole

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from typing_extensions import Unpack

    from penstock.publish.dataset_writer import WriteStats
    from penstock.publish.settings import SaveFormat, SaveOptions
    from penstock.sources.base import ShardedSource
    from penstock.sources.transforms import AnySourceTransform


def pretokenize(
    source: ShardedSource,
    transform: AnySourceTransform | None,
    output_path: str | os.PathLike[str],
    output_format: SaveFormat = "parquet",
    *,
    num_proc: int | None = None,
    show_progress: bool = True,
    **options: Unpack[SaveOptions],
) -> WriteStats:
    """Apply a transform to all samples of a source and write what it gives, such as the tokens of a text.

    With `num_proc`, so many processes apply it, in order; it must then be picklable. On a terminal, a bar shows the
    progress unless `show_progress=False`. The other arguments are those of `save_dataset`.
    """
    check_whole("num_proc", num_proc, 0)
    if transform is not None:
        source = source.transform(transform, num_workers=num_proc or 0, worker_kind="process" if num_proc else "thread")
    with Observer(ObservabilityConfig(progress_enabled=show_progress)).watch("save", str(output_path)) as work:
        options.setdefault("on_rows", work.add)
        return save_dataset(source, output_path, output_format, **options)


def tokenize_and_save(
    data_files: str | Path | Sequence[str | Path],
    tokenizer: Any,
    output_path: str | os.PathLike[str],
    output_format: SaveFormat = "parquet",
    max_length: int = 2048,
    *,
    content_field: str = "text",
    additional_fields: Sequence[str] | None = None,
    num_workers: int = 0,
    show_progress: bool = True,
    **options: Unpack[SaveOptions],
) -> WriteStats:
    """Tokenize the text of files and write the tokens: `input_ids`, `attention_mask` and the fields to be kept.

    Args:
        data_files: The files: a path, a URL, a glob, a folder, or a list of these.
        tokenizer: A name or path, a `TokenizerConfig`, or a tokenizer of the tokenizers library or of transformers.
        output_path: Where to write to.
        output_format: `"parquet"`, `"arrow"`, `"jsonl"` or `"mds"`.
        max_length: The most tokens of a sample; longer texts are cut. A `TokenizerConfig` says that itself.
        content_field: Where the text is.
        additional_fields: Fields to keep beside the tokens.
        num_workers: How many threads tokenize.
        show_progress: Show a bar, on a terminal.
        **options: Those of `save_dataset`; `storage_options` are also those of the files.
    """
    source = create_source(
        DatasetConfig(data_files=data_files, content_field=content_field), options.get("storage_options")
    )
    if isinstance(tokenizer, TokenizerConfig):
        config, given = tokenizer, None
    else:
        config = TokenizerConfig(tokenizer if isinstance(tokenizer, str) else "given", max_length=max_length)
        given = None if isinstance(tokenizer, str) else tokenizer
    tokens = TokenizedShardedSource(source, given, config, content_field, additional_fields, num_workers=num_workers)
    return pretokenize(tokens, None, output_path, output_format, show_progress=show_progress, **options)
