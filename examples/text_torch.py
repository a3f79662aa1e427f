"""Train a tiny language model with a plain torch loop, on text that is tokenized and packed as it is read.

Stop it and run it again with the same --checkpoint: it goes on with the very next batch.

python examples/text_torch.py /tmp/corpus --checkpoint /tmp/model.pt
"""

from __future__ import annotations

from itertools import chain, count, islice

import torch

import text_corpus
from penstock import AsyncDataLoader


class NextWord(torch.nn.Module):
    """Guesses each word by the one before it."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Embedding(num_tokens, 16), torch.nn.Linear(16, num_tokens))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        guesses = self.layers(input_ids)[:, :-1]
        # Labels of padding and of the first token of each document are -100, which does not count.
        return torch.nn.functional.cross_entropy(guesses.transpose(1, 2), labels[:, 1:].long())


def main() -> None:
    args = text_corpus.arguments()
    text_corpus.write_corpus(args.data)
    torch.manual_seed(0)
    rows, num_tokens = text_corpus.packed_rows(args.data)
    loader = AsyncDataLoader(rows, batch_size=8, shuffle_buffer_size=64, seed=1, output="torch")
    model = NextWord(num_tokens)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done = 0
    if args.checkpoint is not None and args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        done = saved["steps"]
    batches = chain.from_iterable(loader for _ in count())  # epoch after epoch
    for step, batch in enumerate(islice(batches, args.steps - done), done + 1):
        text_corpus.note(args.seen, step - 1, batch["input_ids"])
        loss = model(batch["input_ids"], batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.checkpoint is not None and (step % args.save_every == 0 or step == args.steps):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save({**state, "steps": step}, part := args.checkpoint.with_suffix(".part"))
            part.replace(args.checkpoint)  # whole or not there, whenever this is killed
    print(f"{args.steps} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
