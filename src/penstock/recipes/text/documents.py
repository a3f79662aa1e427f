"""Text files with a sentence on each line and a blank line between documents: a row for each document."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from penstock.sources.base import ShardedSource
from penstock.sources.files.text_sources import TextShardedSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.blocks.stage import OpenStage, State
    from penstock.types import Sample


class DocumentSource(TextShardedSource):
    """The documents of text files: `doc_id`, which is the name of the file and a number, and `lines`, stripped."""

    def open_stage(self, shard_name: str, row: int = 0) -> OpenStage:  # type: ignore[override]
        """Open a file at a document."""
        return ShardedSource.open_stage(self, shard_name, row)

    def shard_cuts(self, shard_name: str, num_bytes: int) -> list[State]:  # noqa: ARG002
        """Find nothing: a line does not tell the number of its document."""
        return []

    def read_shard(self, shard_name: str, row: int) -> Iterator[Sample]:
        """Yield the documents of a file from one on."""
        name = shard_name.rpartition("/")[2]
        each = ({"doc_id": f"{name}:{number}", "lines": lines} for number, lines in enumerate(self._read(shard_name)))
        return islice(each, row, None)

    def _read(self, shard_name: str) -> Iterator[list[str]]:
        rows = TextShardedSource.open_stage(self, shard_name)
        lines: list[str] = []
        try:
            while block := rows.next():
                for sample in block.samples():
                    if line := sample["text"].strip():
                        lines.append(line)
                    elif lines:
                        yield lines
                        lines = []
            if lines:
                yield lines
        finally:
            rows.close()
