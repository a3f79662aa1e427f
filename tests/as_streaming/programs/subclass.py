"""A dataset of one's own with `__getitem__`, read by a loader with workers for two epochs."""

import penstock.as_streaming  # isort: skip

import json
import os
import sys

import numpy as np
import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory


class Images(StreamingDataset):
    def __init__(self, local, remote, shuffle, batch_size, transform):
        super().__init__(
            local=local,
            remote=remote,
            shuffle=shuffle,
            batch_size=batch_size,
            shuffle_algo="py1s",
            num_canonical_nodes=2,
        )
        self.transform = transform

    def __getitem__(self, idx):
        sample = super().__getitem__(idx)
        return self.transform(sample["image"]), sample["label"]


if __name__ == "__main__":
    folder = sys.argv[1]
    clean_stale_shared_memory()
    columns = {"image": "ndarray:uint8:2,2", "label": "int"}
    with MDSWriter(out=os.path.join(folder, "remote"), columns=columns, compression="zstd", size_limit=300) as out:
        for number in range(50):
            out.write({"image": np.full((2, 2), number, np.uint8), "label": number % 7})
    local, remote = os.path.join(folder, "local"), os.path.join(folder, "remote")
    dataset = Images(local, remote, True, 8, lambda image: torch.tensor(image.astype(np.float32)) / 2)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=2, drop_last=False)
    epochs = [[(images.mean((1, 2)).tolist(), labels.tolist()) for images, labels in loader] for _ in range(2)]
    print(json.dumps({"length": len(dataset), "batches": len(loader), "epochs": epochs}))
