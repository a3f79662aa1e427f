"""Train with plain torch: alone, or under torchrun on any number of ranks.

Stop it and run it again with the same --checkpoint: it goes on with the very next batch, also on other ranks.

python examples/train_torch.py /tmp/line --checkpoint /tmp/line-model
torchrun --standalone --nproc-per-node 2 examples/train_torch.py /tmp/line --workers 2 --checkpoint /tmp/line-model
"""

from __future__ import annotations

import os
from itertools import chain, count, islice

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tiny
from penstock import StreamingDataLoader, StreamingDataset


def main() -> None:
    args = tiny.arguments()
    tiny.write_line(args.data)
    model: torch.nn.Module = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = StreamingDataset(local=args.data, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=tiny.batch_size(), num_workers=args.workers)
    checkpoint, step = args.checkpoint and args.checkpoint / "last.pt", 0
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    trained = model
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        trained = DistributedDataParallel(model)
    batches = chain.from_iterable(loader for _ in count())  # epoch after epoch
    for batch in islice(batches, tiny.num_steps(args.epochs) - step):
        tiny.note(args.seen, step, batch["id"].tolist())
        loss = torch.nn.functional.mse_loss(trained(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if checkpoint and step % args.save_every == 0 and int(os.environ.get("RANK", "0")) == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            tiny.save(checkpoint, {**states, "step": step})  # the state of the loader is the same on all ranks
    print(f"{step} steps, loss {loss.item():.6f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
