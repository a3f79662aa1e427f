"""Train with Lightning: give the trainer a StreamingDataLoader.

python examples/train_lightning.py /tmp/line
"""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch

import tiny
from penstock import StreamingDataLoader, StreamingDataset


class Line(lightning.LightningModule):
    def __init__(self, seen: Any) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.seen = seen
        self.ids: list[int] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        self.ids += batch["id"].tolist()
        return torch.nn.functional.mse_loss(self.line(batch["x"]), batch["y"])

    def on_train_epoch_end(self) -> None:
        tiny.note(self.seen, self.current_epoch, self.ids)
        self.ids = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    args = tiny.arguments()
    tiny.write_line(args.data)
    loader = StreamingDataLoader(
        StreamingDataset(local=args.data, shuffle=True), batch_size=5, num_workers=args.workers
    )
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Line(args.seen), loader)
    if torch.distributed.is_initialized():  # left open, its threads may abort the process at its end
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
