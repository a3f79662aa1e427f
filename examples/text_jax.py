"""Train a tiny language model with JAX, in one process or in several, on packed text that is shuffled as a whole.

The rows are written to files once on each machine, because a global shuffle reads them in any order. The state of the
loader is one for all processes: go on with any number of them.

python examples/text_jax.py /tmp/corpus --checkpoint /tmp/model.json
python examples/text_jax.py /tmp/corpus --processes 2 --process 0 --port 9000 &
python examples/text_jax.py /tmp/corpus --processes 2 --process 1 --port 9000
"""

from __future__ import annotations

import json
from itertools import chain, count, islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import text_corpus
from penstock import AsyncDataLoader

GLOBAL_BATCH = 8


def loss_of(table: Any, batch: dict[str, Any]) -> Any:
    """Guess each word by the one before it; labels of padding and of first tokens are -100, and do not count."""
    guesses = jax.nn.log_softmax(table[batch["input_ids"][:, :-1]])
    labels = batch["labels"][:, 1:]
    counts = labels >= 0
    losses = -jnp.take_along_axis(guesses, jnp.where(counts, labels, 0)[..., None], axis=-1)[..., 0]
    return (losses * counts).sum() / counts.sum()


@jax.jit
def train_step(table: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
    loss, gradient = jax.value_and_grad(loss_of)(table, batch)
    return table - 5.0 * gradient, loss


def main() -> None:
    args = text_corpus.arguments()
    text_corpus.write_corpus(args.data)
    if args.processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{args.port}", args.processes, args.process)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, num_tokens = text_corpus.packed_rows(args.data)
    loader = AsyncDataLoader(
        rows.select_fields(["input_ids", "labels"]),
        batch_size=GLOBAL_BATCH // jax.process_count(),
        shuffle=True,
        seed=1,
        sharding_map=NamedSharding(mesh, PartitionSpec("data")),
    )
    table: Any = np.zeros((num_tokens, num_tokens), np.float32)
    done = 0
    if args.checkpoint is not None and args.checkpoint.exists():
        saved = json.loads(args.checkpoint.read_text())
        table, done = np.array(saved["table"], np.float32), saved["steps"]
        loader.load_state_dict(saved["loader"])
    batches = chain.from_iterable(loader for _ in count())  # epoch after epoch
    for step, batch in enumerate(islice(batches, args.steps - done), done + 1):
        shards = sorted(batch["input_ids"].addressable_shards, key=lambda shard: shard.index[0].start or 0)
        text_corpus.note(args.seen, step - 1, np.concatenate([np.asarray(shard.data) for shard in shards]))
        table, loss = train_step(table, batch)
        is_due = step % args.save_every == 0 or step == args.steps
        if args.checkpoint is not None and is_due and jax.process_index() == 0:
            state = {"table": np.asarray(table).tolist(), "steps": step, "loader": loader.state_dict()}
            (part := args.checkpoint.with_suffix(".part")).write_text(json.dumps(state))
            part.replace(args.checkpoint)  # whole or not there, whenever this is killed
    print(f"{args.steps} steps, loss {float(loss):.3f}")


if __name__ == "__main__":
    main()
