"""Batches as arrays of JAX, on the devices that shardings name; in processes of their own, which JAX wants."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.servers.process import free_port

ONE = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from penstock import AsyncDataLoader, MemoryShardedSource

samples = [{"x": x, "y": np.full(4, x, np.float32), "text": "t"} for x in range(16)]
mesh = Mesh(np.array(jax.devices()), ("data",))
sharding = NamedSharding(mesh, P("data"))
for sharding_map in (sharding, {"x": sharding}):
    batches = list(AsyncDataLoader(MemoryShardedSource(samples), 8, sharding_map=sharding_map))
    assert [batch["x"].tolist() for batch in batches] == [list(range(8)), list(range(8, 16))]
    assert batches[0]["x"].sharding == sharding
    assert len(batches[0]["x"].addressable_shards) == 2
    assert batches[0]["y"].shape == (8, 4)
    assert isinstance(batches[0]["y"], jax.Array)
    assert batches[0]["text"] == ["t"] * 8
plain = next(iter(AsyncDataLoader(MemoryShardedSource(samples), 8, output="jax")))
assert isinstance(plain["x"], jax.Array)
print("done")
"""

EACH = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from penstock import AsyncDataLoader, MemoryShardedSource

jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", num_processes=2, process_id=int(sys.argv[1]))
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
loader = AsyncDataLoader(MemoryShardedSource([{"x": x} for x in range(32)]), 4, sharding_map=sharding)
seen = []
for batch in loader:
    assert batch["x"].shape == (8,)  # four of each process
    seen += [int(x) for shard in batch["x"].addressable_shards for x in np.asarray(shard.data)]
print(*seen)
"""


def environ(num_devices: int) -> dict[str, str]:
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def test_batches_are_put_where_shardings_say() -> None:
    done = subprocess.run([sys.executable, "-c", ONE], env=environ(2), capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "done", done.stderr


def test_processes_give_their_parts_of_global_batches() -> None:
    port = str(free_port())
    running = [
        subprocess.Popen(
            [sys.executable, "-c", EACH, str(number), port],
            env=environ(1),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    seen = [list(map(int, stdout.split())) for stdout, _ in outputs]
    assert sorted(seen[0] + seen[1]) == list(range(32))
    assert len(seen[0]) == len(seen[1]) == 16
