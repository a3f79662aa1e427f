"""Train with plain torch: alone, or under torchrun on any number of ranks.

python examples/train_torch.py /tmp/line
torchrun --standalone --nproc-per-node 2 examples/train_torch.py /tmp/line --workers 2
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tiny
from penstock import StreamingDataLoader, StreamingDataset


def main() -> None:
    args = tiny.arguments()
    tiny.write_line(args.data)
    model: torch.nn.Module = torch.nn.Linear(1, 1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = StreamingDataset(local=args.data, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=5, num_workers=args.workers)
    for epoch in range(args.epochs):
        ids: list[int] = []
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids += batch["id"].tolist()
        print(f"epoch {epoch}: loss {loss.item():.6f}, {len(ids)} samples on this rank")
        tiny.note(args.seen, epoch, ids)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
