"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.servers.fixtures import ministack, moto  # noqa: F401

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
