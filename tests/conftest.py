"""Settings that all tests share."""

from __future__ import annotations

import multiprocessing
import os

from hypothesis import HealthCheck, settings

from tests.cache.kit import remove_places_of_forkserver
from tests.servers.fixtures import azurite, gcs_door, ministack, moto, nginx  # noqa: F401

# No test leaves this machine: no library asks the address where clouds tell a machine who it is.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["NO_GCE_CHECK"] = "true"

# Loading torch is most of the time of a child. The server that children are forked from loads it once for all of them.
multiprocessing.set_forkserver_preload(["torch"])

# The same examples on every run; `make soak` looks further.
settings.register_profile(
    "penstock",
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("penstock")


def pytest_unconfigure() -> None:
    remove_places_of_forkserver()
