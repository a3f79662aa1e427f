"""Results of runs in a file, so that a long benchmark can be run in slices and shown as one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.harness import Result

Key = tuple[str, ...]  # what was measured: a question, a size, a library


@dataclass
class KeptResults:
    """All results by what was measured; each is in the file as soon as it is known, if there is a file."""

    path: Path | None = None
    results: dict[Key, list[Result]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None) -> KeptResults:
        """Go on with what earlier runs have left in the file, or begin a new one."""
        kept = cls(path)
        if path is not None and path.exists():
            for *key, results in json.loads(path.read_text()):
                kept.results[tuple(key)] = results
        return kept

    def add(self, key: Key, result: Result) -> None:
        self.results.setdefault(key, []).append(result)
        if self.path is not None:
            half = self.path.with_name(f"{self.path.name}.half")
            half.write_text(json.dumps([[*key, results] for key, results in self.results.items()], indent=1))
            half.replace(self.path)
