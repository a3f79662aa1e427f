"""Train with the Hugging Face Trainer: override `get_train_dataloader`.

torchrun --standalone --nproc-per-node 2 examples/train_hf_trainer.py /tmp/line
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

import tiny
from penstock import StreamingDataLoader, StreamingDataset


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.ids: list[int] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: A002
        self.ids += id.tolist()
        return {"loss": torch.nn.functional.mse_loss(self.line(x), y)}


class StreamingTrainer(Trainer):
    def get_train_dataloader(self) -> Any:
        return StreamingDataLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            num_workers=self.args.dataloader_num_workers,
        )


def main() -> None:
    args = tiny.arguments()
    tiny.write_line(args.data)
    model = Line()
    settings = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=5,
        dataloader_num_workers=args.workers,
        learning_rate=0.1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    trainer = StreamingTrainer(
        model=model, args=settings, train_dataset=StreamingDataset(local=args.data, shuffle=True)
    )
    trainer.train()
    per_epoch = len(model.ids) // args.epochs
    for epoch in range(args.epochs):
        tiny.note(args.seen, epoch, model.ids[epoch * per_epoch : (epoch + 1) * per_epoch])


if __name__ == "__main__":
    main()
