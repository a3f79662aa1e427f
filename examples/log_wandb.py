"""Send the counts of a loader to Weights & Biases while training.

pip install wandb
WANDB_MODE=offline python examples/log_wandb.py /tmp/line --workers 2
"""

from __future__ import annotations

import wandb

import tiny
from penstock import StreamingDataLoader, StreamingDataset


def main() -> None:
    args = tiny.arguments()
    tiny.write_line(args.data)
    loader = StreamingDataLoader(
        StreamingDataset(local=args.data, shuffle=True), batch_size=5, num_workers=args.workers
    )
    with wandb.init(project="penstock-example") as run:
        for step in tiny.fit(loader, args.epochs):
            if step % 10 == 0:
                run.log(loader.stats(flat=True), step=step)


if __name__ == "__main__":
    main()
