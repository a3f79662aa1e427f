"""Train with the Hugging Face Trainer: two lines make it read a StreamingDataset and resume at once.

Stop it and run it again with the same --checkpoint: it goes on with the step after the last checkpoint.

torchrun --standalone --nproc-per-node 2 examples/train_hf_trainer.py /tmp/line --checkpoint /tmp/line-trainer
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import tiny
from penstock import StreamingDataset
from penstock.integrations.trainer import StreamingTrainerMixin


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: A002, ARG002
        return {"loss": torch.nn.functional.mse_loss(self.line(x), y)}


class StreamingTrainer(StreamingTrainerMixin, Trainer):
    seen: Path | None = None

    def training_step(self, model: Any, inputs: dict[str, Any], *more: Any) -> Any:
        tiny.note(self.seen, self.state.global_step, inputs["id"].tolist())
        return super().training_step(model, inputs, *more)


def main() -> None:
    args = tiny.arguments()
    tiny.write_line(args.data)
    folder = args.checkpoint or Path(tempfile.mkdtemp())
    settings = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=tiny.batch_size(),
        dataloader_num_workers=args.workers,
        learning_rate=0.1,
        save_steps=args.save_every,
        use_cpu=True,
        report_to=[],
    )
    dataset = StreamingDataset(local=args.data, shuffle=True)
    trainer = StreamingTrainer(model=Line(), args=settings, train_dataset=dataset)
    trainer.seen = args.seen
    last = get_last_checkpoint(str(folder)) if folder.exists() else None
    print(f"{trainer.train(resume_from_checkpoint=last).global_step} steps")


if __name__ == "__main__":
    main()
