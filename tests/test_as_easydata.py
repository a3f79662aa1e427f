"""Arguments by the names that EasyDeL has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import AddField, MemoryShardedSource, pretokenize, save_iterator
from penstock.as_easydata import batch_iterator, create_data_iterator

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [{"n": number} for number in range(5)]


def test_names_of_arguments(tmp_path: Path) -> None:
    assert AddField(field="a", value=1)({}) == {"a": 1}
    assert [len(rows) for rows in batch_iterator(source=ROWS, batch_size=2, drop_last=False)] == [2, 2, 1]
    assert save_iterator(iterator=ROWS, output_path=tmp_path / "rows", format="jsonl").num_examples == 5
    made = pretokenize(
        source=MemoryShardedSource(ROWS),
        transform=None,
        output_path=tmp_path / "tokens",
        output_format="parquet",
        max_shard_size="1kb",
        compression="snappy",
        num_proc=None,
        show_progress=False,
    )
    assert made.num_examples == 5
    batches = create_data_iterator(
        dataset=ROWS,
        batch_size=2,
        shuffle=False,
        prefetch=True,
        prefetch_workers=1,
        prefetch_buffer=2,
        shuffle_buffer=4,
    )
    assert [batch["n"].tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
