"""Sources and stages together: cut after any batch, gone on in another loader, with other threads, or another process.

All that a pass depends on is in the source, the settings and the state.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    AsyncDataLoader,
    FilterNonEmpty,
    JsonShardedSource,
    MDSWriter,
    MemoryShardedSource,
    MixedShardedSource,
    PackedShardedSource,
    ParquetShardedSource,
    ShardedSource,
    StreamingDataset,
    TextShardedSource,
    TokenizedShardedSource,
    TokenizerConfig,
)
from tests.sources.cutting import plain
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = [{"id": n, "text": " ".join(f"w{(n * k) % 13}" for k in range(n % 7)) or "w0"} for n in range(60)]
BATCH = 4


@pytest.fixture(autouse=True)
def places() -> Iterator[Path]:
    with private_places() as folder:
        yield folder


def make_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with MDSWriter(out=folder / "mds", columns={"id": "int", "text": "str"}, size_limit=600) as writer:
        for row in ROWS:
            writer.write(row)
    for part in range(3):
        rows = ROWS[20 * part : 20 * part + 20]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{part}.parquet", row_group_size=6)
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
        (folder / f"{part}.txt").write_text("".join(f"{row['text']}\n" for row in rows))


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"<unk>": 0, **{f"w{n}": n + 1 for n in range(13)}}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


SOURCES: dict[str, Callable[[Path], ShardedSource]] = {
    "parquet": lambda folder: ParquetShardedSource(f"{folder}/*.parquet"),
    "jsonl": lambda folder: JsonShardedSource(f"{folder}/*.jsonl"),
    "text": lambda folder: TextShardedSource(f"{folder}/*.txt"),
    "memory": lambda folder: MemoryShardedSource(ROWS, num_shards=3, fingerprint="rows"),
    "dataset": lambda folder: StreamingDataset(local=folder / "mds").as_source(),
}


def tokenized(source: ShardedSource) -> ShardedSource:
    config = TokenizerConfig("words", max_length=4, overflow="split", return_attention_mask=False)
    return TokenizedShardedSource(source, tokenizer(), config, batch_size=8)


def repeated(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row] * (len(row["text"]) % 3)


STAGES: dict[str, Callable[[ShardedSource], ShardedSource]] = {
    "none": lambda source: source,
    "filtered": lambda source: source.transform(FilterNonEmpty(["text"])).flat_map(repeated),
    "threads": lambda source: source.map(lambda row: {"text": row["text"].upper()}, num_workers=2),
    "mixed": lambda source: MixedShardedSource(
        {"a": source, "b": MemoryShardedSource(ROWS[:20])}, {"a": 0.7, "b": 0.3}, stop_strategy="all_exhausted"
    ).select_fields(["text", "__source__"]),
    "packed": lambda source: PackedShardedSource(tokenized(source), 8, 0, strategy="first_fit"),
    "mixed and packed": lambda source: PackedShardedSource(
        MixedShardedSource({"a": tokenized(source), "b": tokenized(MemoryShardedSource(ROWS))}, epochs=1), 8, None
    ),
}
ORDERS: dict[str, dict[str, Any]] = {"in order": {}, "buffer": {"shuffle_buffer_size": 12, "interleave": 2}}


def make_loader(folder: Path, source: str, stage: str, order: str, **more: Any) -> AsyncDataLoader:
    made = STAGES[stage](SOURCES[source](folder))
    return AsyncDataLoader(made, BATCH, seed=3, drop_last=False, **ORDERS[order], **more)


def check_cuts(folder: Path, source: str, stage: str, order: str, every: int) -> None:
    whole = [plain([batch]) for batch in make_loader(folder, source, stage, order, prefetch_enabled=False)]
    assert len(whole) > 3
    threads: list[dict[str, Any]] = [
        {"prefetch_enabled": False},
        {"prefetch_workers": 1},
        {"prefetch_workers": 3, "prefetch_buffer_size": 2},
    ]
    for cut in range(1, len(whole), every):
        first = make_loader(folder, source, stage, order, **threads[cut % 3])
        batches = iter(first)
        before = [plain([next(batches)]) for _ in range(cut)]
        state = json.loads(json.dumps(first.state_dict()))
        batches.close()
        second = make_loader(folder, source, stage, order, **threads[(cut + 1) % 3])
        second.load_state_dict(state)
        assert before + [plain([batch]) for batch in second] == whole, cut


@pytest.mark.parametrize(("source", "stage"), [
    *product(["parquet"], STAGES), *product(list(SOURCES)[1:], ["none", "filtered"]), ("dataset", "mixed and packed"),
])  # fmt: skip
def test_cut_after_some_batches(source: str, stage: str, tmp_path: Path) -> None:
    make_data(tmp_path)
    check_cuts(tmp_path, source, stage, "buffer", every=5)


@pytest.mark.soak
@pytest.mark.parametrize(("source", "stage", "order"), list(product(SOURCES, STAGES, ORDERS)))
def test_cut_after_any_batch(source: str, stage: str, order: str, tmp_path: Path) -> None:
    make_data(tmp_path)
    check_cuts(tmp_path, source, stage, order, every=1)


PROGRAM = """
import json, sys
from pathlib import Path
from tests.sources.cutting import plain
from tests.sources.test_cut_stages import make_loader
loader = make_loader(Path(sys.argv[1]), *sys.argv[2:5], prefetch_workers=3)
loader.load_state_dict(json.loads(sys.argv[5]))
print(json.dumps([plain([batch]) for batch in loader]))
"""


def test_another_process_goes_on(tmp_path: Path) -> None:
    make_data(tmp_path)
    names = ("parquet", "mixed and packed", "buffer")
    loader = make_loader(tmp_path, *names)
    whole = [plain([batch]) for batch in loader]
    begun = make_loader(tmp_path, *names)
    batches = iter(begun)
    for _ in range(5):
        next(batches)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *names, json.dumps(begun.state_dict())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == whole[5:]
