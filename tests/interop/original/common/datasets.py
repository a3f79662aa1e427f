"""Made-up samples, and a function that writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from streaming import MDSWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class SequenceDataset:
    """Numbered samples: `{"id": "000007", "sample": 21}`."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self.column_names = ["id", "sample"]
        self.column_encodings = ["str", "int"]
        self.column_sizes = [None, 8]

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number >= self._num_samples:
            raise IndexError(number)
        return {"id": f"{number:06}", "sample": 3 * number}

    def get_sample_in_bytes(self, number: int) -> dict[str, bytes]:
        sample = self[number]
        return {"id": sample["id"].encode(), "sample": np.int64(sample["sample"]).tobytes()}


class NumberAndSayDataset:
    """Numbers, and the words for their digits; the same ones after `seed` is set again."""

    column_names = ("number", "words")
    column_encodings = ("int", "str")
    _WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

    def __init__(self, num_samples: int, seed: int) -> None:
        self._num_samples, self.seed = num_samples, seed

    def __len__(self) -> int:
        return self._num_samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in np.random.default_rng(self.seed).integers(0, 10**9, self._num_samples).tolist():
            yield {"number": number, "words": " ".join(self._WORDS[int(digit)] for digit in str(number))}


def write_mds_dataset(
    out_root: str,
    columns: dict[str, str],
    samples: Iterable[dict[str, Any]],
    size_limit: int,
    compression: str | None = None,
) -> None:
    with MDSWriter(out=out_root, columns=columns, compression=compression, size_limit=size_limit) as writer:
        for sample in samples:
            writer.write(sample)
