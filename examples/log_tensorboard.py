"""Write the counts of a loader for TensorBoard while training.

pip install tensorboard
python examples/log_tensorboard.py /tmp/line --workers 2 && tensorboard --logdir runs
"""

from __future__ import annotations

from torch.utils.tensorboard import SummaryWriter

import tiny
from penstock import StreamingDataLoader, StreamingDataset


def main() -> None:
    args = tiny.arguments()
    tiny.write_line(args.data)
    loader = StreamingDataLoader(
        StreamingDataset(local=args.data, shuffle=True), batch_size=5, num_workers=args.workers
    )
    with SummaryWriter() as writer:
        for step in tiny.fit(loader, args.epochs):
            if step % 10 == 0:
                for name, number in loader.stats(flat=True).items():
                    writer.add_scalar(f"data/{name}", number, step)


if __name__ == "__main__":
    main()
