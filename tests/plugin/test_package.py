"""A package of another author is installed: its format, encodings, order, store and catalog work like ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.plugin import acme
from tests.plugin.job import NUM_SAMPLES
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that Python finds an installed package in: the module, and what an installer notes about it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(HERE / "acme.py", folder)
    notes = folder / "acme-1.0.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (notes / "entry_points.txt").write_text(acme.ENTRY_POINTS)
    return folder


@pytest.fixture(autouse=True)
def _places() -> Iterator[None]:
    with private_places():
        yield


def run(site: Path | None, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python, which finds what is installed at the site and nothing else besides."""
    paths = [*([str(site)] if site else []), *(path for path in [os.environ.get("PYTHONPATH")] if path)]
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done


def write(site: Path, kind: str, url: str) -> None:
    run(site, str(HERE / "job.py"), "write", json.dumps({"kind": kind, "url": url}))


@pytest.mark.parametrize(("kind", "start"), [("acme", "spawn"), ("mds", "fork")])
def test_it_writes_streams_and_resumes(site: Path, tmp_path: Path, kind: str, start: str) -> None:
    url, state = f"acme://somewhere{tmp_path}/data", str(tmp_path / "state")
    write(site, kind, url)
    assert len(list((tmp_path / "data").glob(f"shard.*.{kind}"))) > 5
    settings = {"kind": kind, "url": url, "order": "acme", "start": start, "state": state, "stop_at": 0}
    first = run(site, str(HERE / "job.py"), "stream", json.dumps([settings, {**settings, "stop_at": 60}]))
    whole, begun = json.loads(first.stdout)
    assert sorted(whole) == list(range(NUM_SAMPLES))
    then = run(site, str(HERE / "job.py"), "stream", json.dumps([settings]))
    assert begun + json.loads(then.stdout)[0] == whole


def test_a_catalog_makes_an_index_of_something_else(site: Path, tmp_path: Path) -> None:
    url, data = f"acme://somewhere{tmp_path}/data", tmp_path / "data"
    write(site, "acme", url)
    shards = json.loads((data / "index.json").read_text())["shards"]
    files = [[each["raw_data"]["basename"], each["raw_data"]["bytes"], each["samples"]] for each in shards]
    document = {"catalog": "acme", "columns": {"id": "anything", "text": "anything"}, "moved_by": 3, "files": files}
    (data / "index.json").write_text(json.dumps(document))
    code = f"import penstock; print([sample['id'] for sample in penstock.StreamingDataset(remote={url!r})])"
    assert json.loads(run(site, "-c", code).stdout) == list(range(NUM_SAMPLES))


def test_without_the_package_errors_say_what_is_missing(site: Path, tmp_path: Path) -> None:
    for kind, words in (("acme", "has the unknown format 'acme'"), ("mds", "column encoding 'acme_point'")):
        write(site, kind, str(tmp_path / kind))
        done = run(None, "-c", f"import penstock; penstock.LocalDataset({str(tmp_path / kind)!r})", check=False)
        assert words in done.stderr


def test_its_author_runs_the_contracts(site: Path) -> None:
    done = run(site, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "contracts.py"))
    assert "passed" in done.stdout
