"""Several streams with proportions, what their dataset says of them, and batches that are neither dict nor tensor."""

import penstock.as_streaming  # isort: skip

import json
import os
import sys
from collections import UserDict

import torch
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory, merge_index

try:
    from transformers import BatchEncoding
except ImportError:

    class BatchEncoding(UserDict):
        """What a tokenizer gives: no dict, but a mapping."""


def collate(samples):
    return BatchEncoding({"input_ids": torch.tensor([[sample["x"]] * 3 for sample in samples])})


if __name__ == "__main__":
    folder = sys.argv[1]
    clean_stale_shared_memory()
    for name, begin, parts in (("a", 0, 2), ("b", 1000, 3)):
        for part in range(parts):
            out = os.path.join(folder, name, f"part-{part}")
            with MDSWriter(out=out, columns={"x": "int"}, size_limit=200) as writer:
                for number in range(20):
                    writer.write({"x": begin + 20 * part + number})
        merge_index(os.path.join(folder, name))
    streams = [
        Stream(local=os.path.join(folder, "a"), proportion=1.0),
        Stream(local=os.path.join(folder, "b"), proportion=3.0),
    ]
    dataset = StreamingDataset(
        streams=streams,
        epoch_size="0.08k",
        batch_size=8,
        shuffle=True,
        shuffle_algo="py1br",
        shuffle_block_size=40,
        partition_algo="relaxed",
        sampling_method="balanced",
        sampling_granularity=1,
        batching_method="stratified",
        num_canonical_nodes=1,
    )
    loader = StreamingDataLoader(dataset, batch_size=8, collate_fn=collate)
    batches = []
    for batch in loader:
        batches.append(batch["input_ids"][:, 0].tolist())
        if len(batches) == 3:
            taken = loader.num_samples_yielded, loader.state_dict()["sample_in_epoch"]
    print(
        json.dumps(
            {
                "weights": [(stream.proportion, stream.choose) for stream in streams],
                "counts": [dataset.num_samples, dataset.num_shards, dataset.epoch_size, len(dataset), len(loader)],
                "arrays": [
                    dataset.samples_per_shard.tolist(),
                    dataset.shards_per_stream.tolist(),
                    dataset.stream_per_shard.tolist(),
                ],
                "settings": [dataset.shuffle_algo, dataset.partition_algo, dataset.batching_method, dataset.shuffle],
                "keys": [dataset[[0, 41]], dataset[-1], dataset[[[1, 2], [3, 4]]]],
                "spanner": [dataset.spanner[0], dataset.spanner[45]],
                "next_epoch": dataset.next_epoch,
                "taken": taken,
                "batches": batches,
            },
            default=int,
        )
    )
