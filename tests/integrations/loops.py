"""Small loops with checkpoints of other libraries, which notice nothing of penstock but its states."""

from __future__ import annotations

import sys
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, "examples")

import torch

import tiny
from penstock import StreamingDataLoader, StreamingDataset


def torchdata(args: Any, dataset: StreamingDataset) -> None:
    """Keep the state of a StatefulDataLoader, for one rank and as many workers as before."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(dataset, batch_size=10, num_workers=2)
    path, step = args.checkpoint / "last.pt", 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    for batch in islice(chain.from_iterable(loader for _ in count()), tiny.num_steps(args.epochs) - step):
        tiny.note(args.seen, step, batch["id"].tolist())
        step += 1
        if step % args.save_every == 0:
            tiny.save(path, {"loader": loader.state_dict(), "step": step})


def accelerate(args: Any, dataset: StreamingDataset) -> None:
    """Have Accelerate prepare a stock loader and keep its state, for as many workers as before."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from torch.utils.data import DataLoader

    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    loader = accelerator.prepare(DataLoader(dataset, batch_size=10, num_workers=2))
    last, step = args.checkpoint / "last", 0
    if last.exists():
        step = int(last.read_text())
        accelerator.load_state(str(args.checkpoint / f"step{step}"))
    for batch in islice(chain.from_iterable(loader for _ in count()), tiny.num_steps(args.epochs) - step):
        tiny.note(args.seen, step, batch["id"].tolist())
        step += 1
        if step % args.save_every == 0:
            accelerator.save_state(str(args.checkpoint / f"step{step}"))
            last.write_text(str(step))


def orbax(args: Any, dataset: StreamingDataset) -> None:
    """Keep the state beside a model in the checkpoints of Orbax, as docs/trainers.md says."""
    import numpy as np
    import orbax.checkpoint as ocp

    loader = StreamingDataLoader(dataset, batch_size=10, num_workers=args.workers)
    model, step = {"w": np.zeros(3)}, 0
    with ocp.CheckpointManager(args.checkpoint.absolute()) as manager:
        if manager.latest_step() is not None:
            step = int(manager.latest_step())
            kinds = ocp.args.Composite(model=ocp.args.StandardRestore(model), loader=ocp.args.JsonRestore())
            restored = manager.restore(step, args=kinds)
            model = restored["model"]
            loader.load_state_dict(restored["loader"])
            assert model["w"][0] == step
        for batch in islice(chain.from_iterable(loader for _ in count()), tiny.num_steps(args.epochs) - step):
            tiny.note(args.seen, step, batch["id"].tolist())
            model, step = {"w": model["w"] + 1}, step + 1
            if step % args.save_every == 0:
                states = {"model": ocp.args.StandardSave(model), "loader": ocp.args.JsonSave(loader.state_dict())}
                manager.save(step, args=ocp.args.Composite(**states))
                manager.wait_until_finished()


def trl(args: Any, dataset: StreamingDataset) -> None:
    """Fine-tune a tiny GPT-2 with TRL on `to_hf()`, on any number of ranks; in the order of one epoch."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from transformers.trainer_utils import get_last_checkpoint
    from trl import SFTConfig, SFTTrainer

    class NotingTrainer(SFTTrainer):  # type: ignore[misc, unused-ignore]
        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            tiny.note(args.seen, self.state.global_step, [int(number) - 4 for number in inputs["input_ids"][:, 1]])
            return super().training_step(model, inputs, *more)

    words = ["<unk>", "<pad>", "<eos>", "row", *map(str, range(tiny.NUM_SAMPLES))]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": len(words)}
    settings = SFTConfig(
        output_dir=str(args.checkpoint),
        max_steps=tiny.num_steps(1),
        per_device_train_batch_size=tiny.batch_size(),
        save_steps=args.save_every,
        dataset_text_field="text",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
    )
    trainer = NotingTrainer(
        model=GPT2LMHeadModel(GPT2Config(**sizes)),
        args=settings,
        train_dataset=dataset.to_hf(),
        processing_class=tokenizer,
    )
    last = get_last_checkpoint(str(args.checkpoint)) if args.checkpoint.exists() else None
    trainer.train(resume_from_checkpoint=last)


def text_of(sample: dict[str, Any]) -> dict[str, Any]:
    return {"text": f"row {sample['id']}"}


def main() -> None:
    parser = tiny.parser()
    parser.add_argument("--kind", choices=["torchdata", "accelerate", "orbax", "trl"])
    args = parser.parse_args()
    tiny.write_line(args.data)
    Path(args.checkpoint).mkdir(parents=True, exist_ok=True)
    transform = text_of if args.kind == "trl" else None
    dataset = StreamingDataset(local=args.data, shuffle=True, batch_size=tiny.batch_size(), sample_transform=transform)
    {"torchdata": torchdata, "accelerate": accelerate, "orbax": orbax, "trl": trl}[args.kind](args, dataset)


if __name__ == "__main__":
    main()
