"""Writes or streams with what a package of another author brings, in a process that knows it by entry points alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from penstock import MDSWriter, StreamingDataset

NUM_SAMPLES = 200


def write(kind: str, url: str) -> None:
    if kind == "acme":
        from acme import AcmeWriter  # type: ignore[import-not-found]

        writer: Any = AcmeWriter(out=url, columns={"id": "anything", "text": "anything"}, moved_by=3, size_limit=300)
    else:
        columns = {"id": "int", "point": "acme_point", "words": "acme_words"}
        writer = MDSWriter(out=url, columns=columns, size_limit=600)
    with writer:
        for number in range(NUM_SAMPLES):
            writer.write(sample(kind, number))


def sample(kind: str, number: int) -> dict[str, Any]:
    if kind == "acme":
        return {"id": number, "text": f"text {number}"}
    return {"id": number, "point": (number / 2, -1.0), "words": ["a", str(number)]}


def stream(settings: dict[str, Any]) -> list[int]:
    """Return the ids of a pass from where the state says, if there is one, until it is over or told to stop."""
    from penstock import StreamingDataLoader  # with torch, which writing needs not

    kind, saved = settings["kind"], Path(settings["state"])
    dataset = StreamingDataset(
        remote=settings["url"], shuffle=True, shuffle_seed=7, batch_size=5, order=settings["order"]
    )
    loader = StreamingDataLoader(
        dataset, batch_size=5, num_workers=2, multiprocessing_context=settings["start"], collate_fn=list
    )
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    ids: list[int] = []
    for batch in loader:
        assert all(each == sample(kind, each["id"]) for each in batch)
        ids += [each["id"] for each in batch]
        if len(ids) == settings["stop_at"]:
            saved.write_text(json.dumps(loader.state_dict()))
            break
    dataset.close()
    return ids


if __name__ == "__main__":
    command, arguments = sys.argv[1], json.loads(sys.argv[2])
    if command == "write":
        write(**arguments)
    else:
        print(json.dumps([stream(settings) for settings in arguments]))
