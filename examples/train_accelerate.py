"""Train with Hugging Face Accelerate: `prepare` leaves a StreamingDataLoader alone, for each rank has its samples.

`save_state` and `load_state` keep where it is: stop this and run it again with the same --checkpoint.

export ACCELERATE_USE_CPU=true
torchrun --standalone --nproc-per-node 2 examples/train_accelerate.py /tmp/line --checkpoint /tmp/line-accelerate
"""

from __future__ import annotations

from itertools import chain, count, islice

import torch
from accelerate import Accelerator

import tiny
from penstock import StreamingDataLoader, StreamingDataset


def main() -> None:
    args = tiny.arguments()
    accelerator = Accelerator()
    with accelerator.main_process_first():
        tiny.write_line(args.data)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = StreamingDataset(local=args.data, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=tiny.batch_size(), num_workers=args.workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    last, step = args.checkpoint and args.checkpoint / "last", 0
    if last and last.exists():
        step = int(last.read_text())
        accelerator.load_state(str(args.checkpoint / f"step{step}"))
    batches = chain.from_iterable(loader for _ in count())  # epoch after epoch
    for batch in islice(batches, tiny.num_steps(args.epochs) - step):
        tiny.note(args.seen, step, batch["id"].tolist())
        x, y = batch["x"].to(accelerator.device), batch["y"].to(accelerator.device)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        if last and step % args.save_every == 0:
            accelerator.save_state(str(args.checkpoint / f"step{step}"))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:  # only now is it whole
                last.write_text(str(step))
    accelerator.print(f"{step} steps, loss {loss.item():.6f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
