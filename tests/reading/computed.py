"""A source whose samples are computed: no files, no cache."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from penstock import FunctionReader, OpenShard, Source

FIRST_ID = 1000  # no sample of a dataset that tests write has such a number


class Squares(Source):
    """Shards of so many numbers and their squares each."""

    def open(self, shard: int) -> OpenShard:
        begin, end = self.spans.starts[shard : shard + 2].tolist()
        return OpenShard(FunctionReader(end - begin, partial(self.sample, shard)))

    def sample(self, shard: int, row: int) -> dict[str, Any]:
        number = FIRST_ID + int(self.spans.starts[shard]) + row
        return {"id": number, "square": number * number, "process": os.getpid()}
