"""Train a tiny GPT-2 with the Hugging Face Trainer, on text that is tokenized and packed as it is read.

The Trainer takes any loader from `get_train_dataloader`. A callback keeps the state of the loader in each checkpoint,
and `ignore_data_skip=True` has the Trainer not read again what was trained on before.

python examples/text_hf_trainer.py /tmp/corpus --checkpoint /tmp/checkpoints
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import text_corpus
from penstock import AsyncDataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

STATE = "loader.json"


class Batches:
    """The batches of a loader, which counts epochs by itself: the Trainer finds nothing here to set them with."""

    def __init__(self, loader: AsyncDataLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


class PackedTrainer(Trainer):
    resume_from: Path | None = None

    def get_train_dataloader(self) -> Any:
        self.loader = AsyncDataLoader(
            self.train_dataset, batch_size=self.args.per_device_train_batch_size, seed=1, output="torch"
        )
        if self.resume_from is not None:
            self.loader.load_state_dict(json.loads((self.resume_from / STATE).read_text()))
        return Batches(self.loader)


class SaveLoader(TrainerCallback):
    """Saves where the loader is beside the model."""

    def __init__(self) -> None:
        self.trainer: PackedTrainer | None = None

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self.trainer is not None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / STATE).write_text(json.dumps(self.trainer.loader.state_dict()))


class SeenModel(GPT2LMHeadModel):
    """Notes what it is trained on."""

    seen: Path | None = None
    num_steps = 0

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        text_corpus.note(self.seen, self.num_steps, input_ids)
        self.num_steps += 1
        return super().forward(input_ids=input_ids, position_ids=position_ids, labels=labels.long())


def main() -> None:
    args = text_corpus.arguments()
    text_corpus.write_corpus(args.data)
    rows, num_tokens = text_corpus.packed_rows(args.data)
    folder = args.checkpoint or Path(tempfile.mkdtemp())
    last = get_last_checkpoint(str(folder)) if folder.exists() else None
    done = 0 if last is None else int(last.rpartition("-")[2])
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    model = SeenModel(GPT2Config(vocab_size=num_tokens, bos_token_id=2, eos_token_id=2, **sizes))
    model.seen, model.num_steps = args.seen, done
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=done + args.steps,
        per_device_train_batch_size=8,
        save_steps=done + args.steps,
        ignore_data_skip=True,
        use_cpu=True,
        report_to=[],
    )
    keeps = SaveLoader()
    trainer = PackedTrainer(
        model=model,
        args=settings,
        train_dataset=rows.select_fields(["input_ids", "position_ids", "labels"]),
        callbacks=[keeps],
    )
    keeps.trainer, trainer.resume_from = trainer, None if last is None else Path(last)
    trained = trainer.train(resume_from_checkpoint=last)
    print(f"{trained.global_step} steps, loss {trained.training_loss:.3f}")


if __name__ == "__main__":
    main()
