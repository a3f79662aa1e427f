"""Reads and converts with the classes and scripts of MosaicML Streaming; the result goes to a file as JSON.

usage: recipes_peer.py read CLASS ARGUMENTS OUT | recipes_peer.py convert MODULE FLAGS...
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def read(name: str, arguments: str, out: str) -> None:
    from streaming import text

    dataset = getattr(text, name)(batch_size=1, **json.loads(arguments))
    samples = [dataset[number] for number in range(dataset.num_samples)]
    rows = [{key: plain(value) for key, value in dict(sample).items()} for sample in samples]
    with open(out, "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(rows, file)


def main(command: str, name: str, *rest: str) -> None:
    if command == "read":
        read(name, *rest)
    else:
        sys.argv = [name, *rest]
        module = import_module(name)
        module.main(module.parse_args())


if __name__ == "__main__":
    main(*sys.argv[1:])
