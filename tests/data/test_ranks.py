"""Finding one's seat: explicit arguments, then what launchers set, then one process."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.data.ranks import find_seat
from penstock.errors import ConfigError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "2", "SLURM_NTASKS": "6"}
SBATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_JOB_NUM_NODES": "2"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "given", "expected"),
    [
        ({}, {}, (0, 1, 1)),
        (TORCHRUN, {}, (5, 8, 2)),
        (SRUN, {}, (3, 6, 2)),
        (SBATCH, {}, (0, 1, 1)),  # the script itself is one process; its steps are many
        (OPENMPI, {}, (2, 4, 2)),
        (TORCHRUN | OPENMPI, {}, (5, 8, 2)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, {}, (1, 4, 4)),  # it is not said who shares a node
        (TORCHRUN, {"rank": 1, "world_size": 4, "num_nodes": 2}, (1, 4, 2)),
        (TORCHRUN, {"rank": 0, "world_size": 1}, (0, 1, 1)),
    ],
)
def test_seats(environ: dict[str, str], given: dict[str, Any], expected: tuple[int, int, int]) -> None:
    seat = find_seat(environ=environ, **given)
    assert (seat.rank, seat.world.num_ranks, seat.world.num_nodes) == expected


@pytest.mark.parametrize(
    ("environ", "given"),
    [
        ({}, {"rank": 1}),
        ({}, {"world_size": 2}),
        ({}, {"rank": 2, "world_size": 2}),
        ({}, {"rank": -1, "world_size": 2}),
        ({}, {"rank": 0, "world_size": 3, "num_nodes": 2}),
        ({"RANK": "first", "WORLD_SIZE": "2"}, {}),
    ],
)
def test_what_makes_no_seat_is_an_error(environ: dict[str, str], given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        find_seat(environ=environ, **given)
