"""Train with Lightning: give the trainer a StreamingDataLoader, whose state goes into its checkpoints.

Stop it and run it again with the same --checkpoint: it goes on with the step after the last checkpoint.

python examples/train_lightning.py /tmp/line --checkpoint /tmp/line-lightning
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import tiny
from penstock import StreamingDataLoader, StreamingDataset


class Line(lightning.LightningModule):
    def __init__(self, seen: Any) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.seen = seen

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        tiny.note(self.seen, self.global_step, batch["id"].tolist())
        return torch.nn.functional.mse_loss(self.line(batch["x"]), batch["y"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    args = tiny.arguments()
    tiny.write_line(args.data)
    dataset = StreamingDataset(local=args.data, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=tiny.batch_size(), num_workers=args.workers)
    folder = args.checkpoint or tempfile.mkdtemp()
    saves = ModelCheckpoint(
        dirpath=folder, every_n_train_steps=args.save_every, save_last=True, enable_version_counter=False
    )
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Line(args.seen), loader, ckpt_path="last")
    print(f"{trainer.global_step} steps")
    if torch.distributed.is_initialized():  # left open, its threads may abort the process at its end
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
