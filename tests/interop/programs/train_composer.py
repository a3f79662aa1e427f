"""Trains with Composer, saves checkpoints, and goes on from one in the middle of an epoch."""

import penstock.as_streaming  # isort: skip

import json
import os
import sys

import torch
from composer import Trainer
from composer.models import ComposerModel
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory


class Numbers(StreamingDataset):
    def __getitem__(self, idx):
        number = super().__getitem__(idx)["x"]
        return {"x": torch.tensor([number / 100]), "y": torch.tensor([number / 50]), "id": number}


class Line(ComposerModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, batch):
        self.seen += batch["id"].tolist()
        return self.layer(batch["x"])

    def loss(self, outputs, batch):
        return torch.nn.functional.mse_loss(outputs, batch["y"])


def train(folder, load_path=None):
    stream = Stream(remote=os.path.join(folder, "remote"), local=os.path.join(folder, "local"))
    dataset = Numbers(streams=[stream], batch_size=8, shuffle=True)
    model = Line()
    trainer = Trainer(
        model=model,
        train_dataloader=StreamingDataLoader(dataset, batch_size=8, num_workers=2),
        max_duration="20ba",
        optimizers=torch.optim.SGD(model.parameters(), 0.1),
        save_folder=os.path.join(folder, "checkpoints"),
        save_interval="3ba",
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
    clean_stale_shared_memory()
    with MDSWriter(out=os.path.join(folder, "remote"), columns={"x": "int"}, size_limit=200) as writer:
        for number in range(100):
            writer.write({"x": number})
    whole = train(folder)
    rest = train(folder, os.path.join(folder, "checkpoints", "ep0-ba6-rank0.pt"))
    print(json.dumps({"whole": whole, "rest": rest, "epoch_size": 100, "taken_before": 48}))
