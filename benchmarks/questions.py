"""The command line of a benchmark: questions by name, a full and a quick scale, and one table at the end."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.harness import BenchmarkError, Comparison, Workshop, python_of, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Scale = TypeVar("Scale")


def answer(
    description: str,
    questions: Mapping[str, Callable[[Workshop, Scale], list[Comparison]]],
    *,
    full: Scale,
    quick: Scale,
    peers: Sequence[str],
) -> None:
    """Asks the questions that the command line names, or all, and prints what came of them."""
    arguments = _parse_arguments(description, list(questions))
    answers = _load(arguments.results)
    try:
        for peer in peers:
            python_of(peer)  # before minutes of work, not after them
        with Workshop(arguments.keep or arguments.directory, keep=arguments.keep is not None) as shop:
            for name in arguments.only or questions:
                print(f"{name} ...", file=sys.stderr)
                answers[name] = questions[name](shop, quick if arguments.quick else full)
                _save(arguments.results, answers)
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
    comparisons = [comparison for name in questions for comparison in answers.get(name, [])]
    print(table(comparisons))
    if arguments.json:
        arguments.json.write_text(json.dumps([comparison.as_json() for comparison in comparisons], indent=2))


def _load(path: Path | None) -> dict[str, list[Comparison]]:
    """What earlier runs left in the file: a long benchmark can be run in slices and shown as one."""
    if path is None or not path.exists():
        return {}
    kept = json.loads(path.read_text())
    return {name: [Comparison(**each) for each in comparisons] for name, comparisons in kept.items()}


def _save(path: Path | None, answers: dict[str, list[Comparison]]) -> None:
    if path is not None:
        half = path.with_name(f"{path.name}.half")
        half.write_text(json.dumps({name: list(map(asdict, each)) for name, each in answers.items()}, indent=1))
        half.replace(path)


def _parse_arguments(description: str, names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="less data, shorter and single runs")
    parser.add_argument("--only", choices=names, action="append", help="one question (repeatable)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--directory", help="where to put the datasets (default: the temporary directory)")
    parser.add_argument("--keep", metavar="FOLDER", help="put the datasets there and leave them for the next run")
    parser.add_argument("--results", type=Path, metavar="FILE", help="add the figures to those of earlier runs, there")
    return parser.parse_args()
