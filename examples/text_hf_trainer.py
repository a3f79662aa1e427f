"""Train a tiny GPT-2 with the Hugging Face Trainer, on text that is tokenized and packed as it is read.

A mixin makes the Trainer read any source, and keeps where it is in each checkpoint: stop this and run it again.

python examples/text_hf_trainer.py /tmp/corpus --checkpoint /tmp/checkpoints
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import text_corpus
from penstock.integrations.trainer import StreamingTrainerMixin

if TYPE_CHECKING:
    import torch


class PackedTrainer(StreamingTrainerMixin, Trainer):
    seen: Path | None = None

    def training_step(self, model: Any, inputs: dict[str, Any], *more: Any) -> Any:
        text_corpus.note(self.seen, self.state.global_step, inputs["input_ids"])
        return super().training_step(model, inputs, *more)


class Packed(GPT2LMHeadModel):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        return super().forward(input_ids=input_ids, position_ids=position_ids, labels=labels.long())


def main() -> None:
    args = text_corpus.arguments()
    text_corpus.write_corpus(args.data)
    rows, num_tokens = text_corpus.packed_rows(args.data)
    folder = args.checkpoint or Path(tempfile.mkdtemp())
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=args.steps,
        per_device_train_batch_size=8,
        save_steps=args.save_every,
        use_cpu=True,
        report_to=[],
    )
    trainer = PackedTrainer(
        model=Packed(GPT2Config(vocab_size=num_tokens, bos_token_id=2, eos_token_id=2, **sizes)),
        args=settings,
        train_dataset=rows.select_fields(["input_ids", "position_ids", "labels"]),
    )
    trainer.seen = args.seen
    last = get_last_checkpoint(str(folder)) if folder.exists() else None
    trained = trainer.train(resume_from_checkpoint=last)
    print(f"{trained.global_step} steps, loss {trained.training_loss:.3f}")


if __name__ == "__main__":
    main()
