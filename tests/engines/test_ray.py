"""A real Ray on this machine builds caches: the same files, bounded, retried, and no row on the way."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from penstock import ParquetShardedSource, Pipeline, save_iterator
from penstock.errors import ConfigError, TransformError
from penstock.pipeline.caching import follow_plan
from penstock.publish.engines import RayEngine
from penstock.publish.materialise import PartDone, PartsTarget, materialise
from tests.pipeline.deadly import Deadly
from tests.pipeline.texts import same, settings, write_texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("ignore")]  # those of Ray itself

SMALL = {"part_size": 1000, "max_shard_size": 2000}
OBJECT_STORE_BYTES = 100 << 20


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    library = RayEngine(object_store_memory=OBJECT_STORE_BYTES).start()
    yield library
    library.shutdown()


def cached(data: Path, root: Path, **further: Any) -> Pipeline:
    config = settings(data, cache={"cache_dir": str(root), **SMALL}, **further)
    return Pipeline.from_config(config).source().tokenize().cache()


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("shard.*")}


def test_ray_is_started_as_settings_say(ray: Any) -> None:
    assert ray.cluster_resources()["object_store_memory"] == pytest.approx(OBJECT_STORE_BYTES, rel=0.01)


def test_the_same_files_as_without_it(tmp_path: Path) -> None:
    data = write_texts(tmp_path)
    here = list(cached(data, tmp_path / "here").build())
    there = list(cached(data, tmp_path / "ray", ray={"enabled": True, "num_workers": 2}).build())
    assert same(there, here)
    assert files(tmp_path / "ray") == files(tmp_path / "here")
    assert len(files(tmp_path / "ray")) > 10
    # Once it is there, Ray is not asked.
    assert same(list(cached(data, tmp_path / "here", ray={"enabled": True}).build()), here)


def test_batches_while_ray_computes(tmp_path: Path) -> None:
    data = write_texts(tmp_path)
    config = settings(data, cache={"cache_dir": str(tmp_path / "cache"), **SMALL, "wait": False})
    config["ray"] = {"enabled": True, "num_workers": 1}
    pipeline = Pipeline.from_config(config).source().tokenize().cache().load({"batch_size": 1})
    assert len(list(pipeline)) == 400


def test_a_task_whose_worker_dies_is_run_again(tmp_path: Path) -> None:
    made = follow_plan(Deadly(tmp_path / "dead"), PartsTarget(str(tmp_path / "cache")), 1)
    done: list[PartDone] = []
    materialise(*made, RayEngine(2), done.append)
    assert (tmp_path / "dead").exists()
    assert sorted(part.number for part in done) == [0, 1, 2, 3]
    assert sum(part.num_rows for part in done) == 40


def test_an_error_is_the_one_that_happened(tmp_path: Path) -> None:
    data = write_texts(tmp_path)
    with (data / "books-1.jsonl").open("a") as file:
        file.write('\n{"id": "no text"}')
    with pytest.raises(TransformError, match="no field 'text' to tokenize"):
        cached(data, tmp_path / "cache", ray={"enabled": True, "num_workers": 2}).build()


def test_what_is_sent_holds_no_rows(tmp_path: Path) -> None:
    rows = [{"id": n, "text": "x" * 1000} for n in range(5000)]
    save_iterator(rows, tmp_path / "rows", max_shard_size="500kb")
    source = ParquetShardedSource(str(tmp_path / "rows"))
    made = follow_plan(source, PartsTarget(str(tmp_path / "cache")), "16MB")
    assert len(pickle.dumps(made)) < 20_000


def test_no_more_tasks_than_workers(tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    wait = ray.wait

    def note(references: Any, **how: Any) -> Any:
        nonlocal most
        most = max(most, len(references))
        return wait(references, **how)

    monkeypatch.setattr(ray, "wait", note)
    data = write_texts(tmp_path)
    cached(data, tmp_path / "cache", ray={"enabled": True, "num_workers": 2}).build()
    assert most == 2


def test_what_tasks_need(tmp_path: Path) -> None:
    assert RayEngine().task_options()["num_cpus"] == 1
    assert RayEngine(use_gpu=True).task_options()["num_gpus"] == 1
    needs = RayEngine(resources_per_worker={"CPU": 0.5, "disk": 1}).task_options()
    assert needs["num_cpus"] == 0.5
    assert needs["resources"] == {"disk": 1}


def test_processor_share_is_followed(tmp_path: Path, ray: Any) -> None:
    data = write_texts(tmp_path)
    all_of_them = ray.cluster_resources()["CPU"]
    part = {"enabled": True, "num_workers": 2, "resources_per_worker": {"CPU": all_of_them}}
    assert len(list(cached(data, tmp_path / "cache", ray=part).build())) == 400


def test_ray_without_a_cache_is_refused(tmp_path: Path) -> None:
    data = write_texts(tmp_path)
    config = settings(data, ray={"enabled": True})
    with pytest.raises(ConfigError, match="Ray spreads what cache\\(\\) computes"):
        Pipeline.from_config(config).source().tokenize().build()
