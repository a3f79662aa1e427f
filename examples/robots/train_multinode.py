"""Train a small policy on robot episodes, on any number of nodes, and go on where a job that ended left off.

One process:     python examples/robots/train_multinode.py --root /data/arm
One node:        torchrun --standalone --nproc-per-node 8 examples/robots/train_multinode.py --root s3://bucket/arm
Several nodes:   sbatch examples/robots/slurm_train.sh
Loading alone:   add --dummy: no model, only how fast batches come

Each rank reads its own frames, so there is no DistributedSampler, and the loader does not go through
`accelerator.prepare`. The state that is saved holds for the whole job: load it on any number of ranks.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from penstock import StreamingDataLoader, StreamingLeRobotDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

ACTION, STATE = "action", "observation.state"
_WARM_UP = 3  # batches that are not timed: workers start, files are opened


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo-id", default="", help="a dataset of the Hugging Face Hub")
    parser.add_argument("--root", help="a folder, or a URL of any store, instead")
    parser.add_argument("--revision", help="a branch, tag or commit of the Hub")
    parser.add_argument("--data-files-root", help="where data/ and videos/ are, if not with meta/")
    parser.add_argument("--storage-options", type=json.loads, help="credentials of the store, as JSON")
    parser.add_argument("--output-dir", type=Path, default=Path("robot-policy"))
    parser.add_argument("--steps", type=int, default=1000, help="training steps in all; of --dummy, at most")
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--episode-pool-size", type=int, default=64)
    parser.add_argument("--video-decoder-cache-size", type=int)
    parser.add_argument("--n-action-steps", type=int, default=16, help="how many actions are learned at a time")
    parser.add_argument("--save-freq", type=int, default=100)
    parser.add_argument("--log-freq", type=int, default=10)
    parser.add_argument("--resume-from", type=Path, help="a checkpoint; by default the last one of --output-dir")
    parser.add_argument("--dummy", action="store_true", help="only load batches, and say how fast they come")
    parser.add_argument("--seen", type=Path, help="a folder in which each rank notes the frames that it got")
    return parser.parse_args()


def open_loader(args: argparse.Namespace) -> StreamingDataLoader:
    where = {
        "repo_id": args.repo_id,
        "root": args.root,
        "revision": args.revision,
        "data_files_root": args.data_files_root,
        "storage_options": args.storage_options,
    }
    probe = StreamingLeRobotDataset(**where)  # reads the metadata alone, to learn the rate
    deltas = {ACTION: [step / probe.fps for step in range(args.n_action_steps)]}
    probe.close()
    dataset = StreamingLeRobotDataset(
        **where,
        delta_timestamps=deltas,
        episode_pool_size=args.episode_pool_size,
        video_decoder_cache_size=args.video_decoder_cache_size,
        tolerance_s=1e-3,
        return_uint8=True,  # a quarter of the bytes from workers to the device
    )
    return StreamingDataLoader(
        dataset,
        batch_size=args.batch_size,
        num_workers=args.num_workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=args.num_workers > 0,
        drop_last=False,
    )


def endless(loader: StreamingDataLoader) -> Iterator[dict[str, Any]]:
    """Yield batches of epoch after epoch."""
    while True:
        yield from loader


class Policy(torch.nn.Module):
    """From what the robot sees and where it is to what it does next: as small as an example may be."""

    def __init__(self, cameras: list[str], features: dict[str, Any], num_actions: int) -> None:
        super().__init__()
        self.cameras, self.num_actions = cameras, num_actions
        self.state_size = features[STATE]["shape"][0] if STATE in features else 0
        self.action_size = features[ACTION]["shape"][0]
        self.see = torch.nn.AdaptiveAvgPool2d(8)
        self.decide = torch.nn.Sequential(
            torch.nn.Linear(len(cameras) * 3 * 64 + self.state_size, 256),
            torch.nn.ReLU(),
            torch.nn.Linear(256, num_actions * self.action_size),
        )

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        seen = [self.see(batch[camera].float() / 255).flatten(1) for camera in self.cameras]
        known = [*seen, *([batch[STATE].float()] if self.state_size else [])]
        actions: torch.Tensor = self.decide(torch.cat(known, dim=1))
        return actions.view(-1, self.num_actions, self.action_size)


def loss_of(policy: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Compare actions, but for those beyond the end of the episode."""
    wanted, counts = batch[ACTION].float(), ~batch[f"{ACTION}_is_pad"]
    errors = (policy(batch) - wanted.view(*wanted.shape[:2], -1)).square().mean(dim=-1)
    loss: torch.Tensor = (errors * counts).sum() / counts.sum().clamp(min=1)
    return loss


def train(args: argparse.Namespace, accelerator: Accelerator) -> None:
    loader = open_loader(args)
    assert isinstance(loader.dataset, StreamingLeRobotDataset)
    meta = loader.dataset.meta
    policy = Policy(meta.camera_keys, dict(meta.features), args.n_action_steps)
    policy, optimizer = accelerator.prepare(policy, torch.optim.AdamW(policy.parameters(), lr=1e-3))
    step = load(args, accelerator, policy, optimizer, loader)
    seen: list[int] = []
    for batch in endless(loader) if step < args.steps else ():
        seen += batch["index"].tolist()
        tensors = {key: value.to(accelerator.device) for key, value in batch.items() if torch.is_tensor(value)}
        loss = loss_of(policy, tensors)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        if step % args.log_freq == 0:
            waits = loader.stats().loop
            share = waits.waiting_share if waits is not None and waits.waiting_share is not None else 0.0
            accelerator.print(f"step {step}: loss {loss.item():.4f}, {share:.0%} of the time spent on waiting for data")
        if step % args.save_freq == 0 or step == args.steps:
            save(args, accelerator, policy, optimizer, loader, step)
        if step == args.steps:
            break
    note(args, accelerator, seen)


def save(
    args: argparse.Namespace,
    accelerator: Accelerator,
    policy: Any,
    optimizer: Any,
    loader: StreamingDataLoader,
    step: int,
) -> None:
    """Save one state for all ranks: the model, and where the data of the whole job stand."""
    state = loader.state_dict()  # on every rank, of the batch that was taken last
    if accelerator.is_main_process:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        checkpoint = {
            "step": step,
            "policy": accelerator.unwrap_model(policy).state_dict(),
            "optimizer": optimizer.state_dict(),
            "data": state,
        }
        part = args.output_dir / "checkpoint.part"
        torch.save(checkpoint, part)
        part.replace(args.output_dir / "checkpoint.pt")  # whole or not at all
    accelerator.wait_for_everyone()


def load(
    args: argparse.Namespace, accelerator: Accelerator, policy: Any, optimizer: Any, loader: StreamingDataLoader
) -> int:
    """Go on from a checkpoint, if there is one, and give the number of steps that were taken."""
    path = args.resume_from or args.output_dir / "checkpoint.pt"
    if args.resume_from is None and not path.exists():
        return 0
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    accelerator.unwrap_model(policy).load_state_dict(checkpoint["policy"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    loader.load_state_dict(checkpoint["data"])
    accelerator.print(f"going on from step {checkpoint['step']}")
    return int(checkpoint["step"])


def load_only(args: argparse.Namespace, accelerator: Accelerator) -> None:
    """Take batches and do nothing with them, for one epoch or so many steps."""
    loader = open_loader(args)
    begun = time.perf_counter()
    seen: list[int] = []
    num_timed, timed_from, first_s = 0, begun, 0.0
    for number, batch in enumerate(loader, start=1):
        seen += batch["index"].tolist()
        if number == 1:
            first_s = time.perf_counter() - begun
        if number <= _WARM_UP:
            timed_from = time.perf_counter()
        else:
            num_timed += len(batch["index"])
        if number == args.steps:
            break
    elapsed = max(1e-9, time.perf_counter() - timed_from)
    counted = torch.tensor([num_timed / elapsed, len(seen)], device=accelerator.device, dtype=torch.float64)
    total = accelerator.reduce(counted, reduction="sum").tolist()
    stats = loader.stats(flat=True)
    decoded, used = int(stats["video.frames_decoded"]), int(stats["video.frames_used"])
    # Nodes may each be a world of their own, which all have a rank 0: so the node is named, too.
    here = f"rank {accelerator.process_index} of {platform.node()}"
    accelerator.print(
        f"{num_timed / elapsed:.0f} samples/s on {here}, {total[0]:.0f} on all {accelerator.num_processes};"
        f" {int(total[1])} samples in all; first batch after {first_s:.2f} s;"
        f" {decoded} video frames decoded for {used} used on {here};"
        f" {stats['downloaded_bytes'] / 1e6:.1f} MB fetched by {here}"
    )
    note(args, accelerator, seen)


def note(args: argparse.Namespace, accelerator: Accelerator, seen: list[int]) -> None:
    if args.seen is not None:
        args.seen.mkdir(parents=True, exist_ok=True)
        report = {"world": accelerator.num_processes, "seen": seen}
        (args.seen / f"rank{accelerator.process_index}.json").write_text(json.dumps(report))


def main() -> None:
    args = parse_arguments()
    # Without this, processes that torchrun starts on a machine without GPUs would each be a job of their own.
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    (load_only if args.dummy else train)(args, accelerator)
    accelerator.end_training()


if __name__ == "__main__":
    main()
