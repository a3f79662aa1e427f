"""A real Ray on this machine builds caches: the same files, bounded, retried, and no row on the way."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock
from penstock import ParquetShardedSource, Pipeline, save_iterator
from penstock.errors import ConfigError, TransformError
from penstock.pipeline.caching import follow_plan
from penstock.publish.engines import RayEngine
from penstock.publish.materialise import PartDone, PartsTarget, materialise
from penstock.ray import MDSDatasink
from tests.conversion.test_converting import converted, digests, write_rows
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


# --- Conversions --------------------------------------------------------------------------------------------


def test_a_conversion_ends_in_the_same_bytes(tmp_path: Path) -> None:
    for number in range(2):
        write_rows(tmp_path / "data", number)
    here = converted(tmp_path / "data", tmp_path / "here")
    there = converted(tmp_path / "data", tmp_path / "there", engine="ray", workers=2)
    assert digests(tmp_path / "there") == digests(tmp_path / "here")
    assert there.num_tasks == here.num_tasks > 3
    again = converted(tmp_path / "data", tmp_path / "there", engine="ray", shuffle=False)
    assert again.num_found == again.num_tasks


def test_a_dataset_of_ray_is_converted_and_kept(ray: Any, tmp_path: Path) -> None:
    rows = [{"id": number, "text": f"text {number}", "row": np.full(3, number)} for number in range(100)]
    dataset = ray.data.from_items(rows, override_num_blocks=4).materialize()
    report = penstock.convert(dataset, tmp_path / "out", progress=False)
    assert (report.num_rows, report.num_tasks, report.is_whole) == (100, 4, True)
    samples = list(penstock.LocalDataset(tmp_path / "out"))
    assert sorted(int(sample["id"]) for sample in samples) == list(range(100))
    assert all((sample["row"] == sample["id"]).all() for sample in samples)
    again = penstock.convert(dataset, tmp_path / "out", progress=False)
    assert again.num_found == again.num_tasks
    changed = ray.data.from_items(rows[1:], override_num_blocks=4)
    assert penstock.convert(changed, tmp_path / "out", progress=False).num_rows == 99


def test_ray_writes_a_dataset_by_its_sink(ray: Any, tmp_path: Path) -> None:
    rows = [{"id": number, "text": f"text {number}", "score": number / 2} for number in range(100)]
    dataset = ray.data.from_items(rows, override_num_blocks=3)
    dataset.write_datasink(MDSDatasink(tmp_path / "out", compression="zstd"))
    kept = penstock.LocalDataset(tmp_path / "out")
    assert sorted((int(each["id"]), each["text"], float(each["score"])) for each in kept) == sorted(
        (row["id"], row["text"], row["score"]) for row in rows
    )
    with pytest.raises(Exception, match="has a conversion already"):
        dataset.write_datasink(MDSDatasink(tmp_path / "out", compression="zstd"))


def test_a_task_of_the_sink_that_is_run_twice_leaves_one_copy(ray: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    from ray.data._internal.execution.interfaces import TaskContext

    table, sink = pa.table({"id": range(10)}), MDSDatasink(tmp_path / "out")
    sink.on_write_start(table.schema)
    done = [sink.write([table], TaskContext(number, "write")) for number in (0, 2, 2)]
    sink.on_write_complete(type("Result", (), {"write_returns": done}))
    assert [int(each["id"]) for each in penstock.LocalDataset(tmp_path / "out")] == [*range(10), *range(10)]


def test_ray_without_a_cache_is_refused(tmp_path: Path) -> None:
    data = write_texts(tmp_path)
    config = settings(data, ray={"enabled": True})
    with pytest.raises(ConfigError, match="Ray spreads what cache\\(\\) computes"):
        Pipeline.from_config(config).source().tokenize().build()
