"""A stock loader that goes on in the middle of an epoch, as Composer does it: the trainer counts the samples."""

import penstock.as_streaming  # isort: skip

import json
import os
import sys

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader


def make(folder, **options):
    dataset = StreamingDataset(
        remote=os.path.join(folder, "remote"),
        local=os.path.join(folder, "local"),
        batch_size=4,
        shuffle=True,
        shuffle_algo="py1e",
        shuffle_seed=17,
        num_canonical_nodes=2,
        **options,
    )
    return dataset, DataLoader(dataset, batch_size=4, num_workers=2)


if __name__ == "__main__":
    folder = sys.argv[1]
    clean_stale_shared_memory()
    with MDSWriter(out=os.path.join(folder, "remote"), columns={"x": "int"}, size_limit=200) as out:
        for number in range(60):
            out.write({"x": number})
    dataset, loader = make(folder)
    first = [batch["x"].tolist() for batch, _ in zip(loader, range(5))]
    states = [dataset.state_dict(20, True), dataset.state_dict(20, False)]
    keys = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes")
    del loader, dataset
    clean_stale_shared_memory()
    dataset, loader = make(folder)
    dataset.load_state_dict(states[0])
    rest = [batch["x"].tolist() for batch in loader]
    following = [batch["x"].tolist() for batch in loader]
    state = dataset.state_dict(8, False)
    print(
        json.dumps(
            {
                "first": first[:5],
                "states": [[state[key] for key in keys] for state in (*states, state)],
                "rest": rest,
                "following": following,
            }
        )
    )
