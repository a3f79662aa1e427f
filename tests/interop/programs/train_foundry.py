"""Trains a small MPT with LLM-foundry's own data loader, and goes on from a checkpoint in the middle of an epoch."""

import penstock.as_streaming  # isort: skip

import json
import os
import sys

import numpy as np
import torch
from composer import Trainer
from llmfoundry.data.text_data import build_text_dataloader
from llmfoundry.models.mpt import ComposerMPTCausalLM
from streaming import MDSWriter
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

NUM_WORDS, LENGTH = 90, 16


class Model(ComposerMPTCausalLM):
    """Notes the first token of each sequence, which numbers it."""

    def forward(self, batch):
        self.seen = [*getattr(self, "seen", []), *batch["input_ids"][:, 0].tolist()]
        return super().forward(batch)


def train(folder, tokenizer, load_path=None):
    dataset = {
        "remote": os.path.join(folder, "remote"),
        "local": os.path.join(folder, "local"),
        "split": "train",
        "shuffle": True,
        "max_seq_len": LENGTH,
        "eos_token_id": tokenizer.eos_token_id,
    }
    loader = build_text_dataloader(
        tokenizer=tokenizer,
        device_batch_size=4,
        dataset=dataset,
        drop_last=True,
        num_workers=2,
        pin_memory=False,
    )
    model = Model(
        tokenizer=tokenizer,
        d_model=16,
        n_heads=2,
        n_layers=1,
        expansion_ratio=1,
        max_seq_len=LENGTH,
        vocab_size=NUM_WORDS + 2,
        attn_config={"attn_impl": "torch"},
        loss_fn="torch_crossentropy",
        init_device="cpu",
    )
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        max_duration="20ba",
        optimizers=torch.optim.AdamW(model.parameters(), 1e-3),
        save_folder=os.path.join(folder, "checkpoints"),
        save_interval="4ba",
        save_overwrite=True,
        load_path=load_path,
        progress_bar=False,
        device="cpu",
        auto_log_hparams=False,
    )
    trainer.fit()
    trainer.close()
    return model.seen


if __name__ == "__main__":
    folder = sys.argv[1]
    out = os.path.join(folder, "remote", "train")
    with MDSWriter(out=out, columns={"tokens": "ndarray:int32"}, compression="zstd", size_limit=2000) as writer:
        for number in range(64):
            writer.write({"tokens": np.arange(number, number + LENGTH, dtype=np.int32) % NUM_WORDS})
    words = {f"w{number}": number for number in range(NUM_WORDS)} | {"<pad>": NUM_WORDS, "<eos>": NUM_WORDS + 1}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
    )
    whole = train(folder, tokenizer)
    rest = train(folder, tokenizer, os.path.join(folder, "checkpoints", "ep0-ba8-rank0.pt"))
    print(json.dumps({"whole": whole, "rest": rest, "epoch_size": 64, "taken_before": 32}))
