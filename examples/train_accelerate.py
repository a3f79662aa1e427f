"""Train with Hugging Face Accelerate: `prepare` leaves a StreamingDataLoader alone, for each rank has its samples.

ACCELERATE_USE_CPU=true torchrun --standalone --nproc-per-node 2 examples/train_accelerate.py /tmp/line
"""

from __future__ import annotations

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
    loader = StreamingDataLoader(dataset, batch_size=5, num_workers=args.workers)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        ids: list[int] = []
        for batch in loader:
            x, y = batch["x"].to(accelerator.device), batch["y"].to(accelerator.device)
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            ids += batch["id"].tolist()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.6f}, {len(ids)} samples on this rank")
        tiny.note(args.seen, epoch, ids)
    accelerator.end_training()


if __name__ == "__main__":
    main()
