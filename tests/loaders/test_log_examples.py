"""The examples that log counts: what they hand to W&B, TensorBoard and Prometheus, whose place stand-ins take here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

STAND_INS = """
import json, runpy, sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

logged = []

@contextmanager
def wandb_init(project):
    yield SimpleNamespace(log=lambda numbers, step: logged.extend([step, *item] for item in numbers.items()))

@contextmanager
def summary_writer():
    yield SimpleNamespace(add_scalar=lambda name, number, step: logged.append([step, name, number]))

collectors = []
stand_ins = {
    "wandb": {"init": wandb_init},
    "torch.utils.tensorboard": {"SummaryWriter": summary_writer},
    "prometheus_client": {"start_http_server": lambda port, addr: None},
    "prometheus_client.core": {
        "REGISTRY": SimpleNamespace(register=collectors.append),
        "GaugeMetricFamily": lambda name, words, value: [0, name, value],
    },
    "prometheus_client.registry": {"Collector": object},
}
for name, values in stand_ins.items():
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(values)
example, sys.argv = sys.argv[1], sys.argv[1:]
runpy.run_path(example, run_name="__main__")
for collector in collectors:
    logged.extend(collector.collect())
print(json.dumps(logged))
"""


@pytest.mark.parametrize(
    ("example", "prefix"), [("log_wandb", ""), ("log_tensorboard", "data/"), ("log_prometheus", "penstock_")]
)
def test_counts_arrive_by_name(tmp_path: Path, example: str, prefix: str) -> None:
    command = [
        sys.executable,
        "-c",
        STAND_INS,
        str(EXAMPLES / f"{example}.py"),
        str(tmp_path / "line"),
        "--workers",
        "2",
    ]
    done = subprocess.run(command, cwd=EXAMPLES, env=_environment(), capture_output=True, text=True, check=True)
    logged = json.loads(done.stdout.splitlines()[-1])
    steps = {step for step, _, _ in logged}
    assert steps == ({0} if example == "log_prometheus" else set(range(0, 100, 10)))
    last = {name: number for step, name, number in logged if step == max(steps)}
    joint = "_" if example == "log_prometheus" else "."
    wanted = ["samples", "seconds_waiting", f"loop{joint}waiting_share", f"node{joint}downloads"]
    assert {prefix + name for name in wanted} <= last.keys()
    assert all(name.startswith(prefix) for name in last)
    assert 455 <= last[f"{prefix}samples"] <= 500


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(EXAMPLES)])}
