"""The smaller world that several ranks sharing their samples make up together."""

from __future__ import annotations

from penstock.errors import ConfigError


def replicated_shape(num_nodes: int, ranks_per_node: int, replication: int) -> tuple[int, int]:
    """Return the nodes and ranks per node of a world in which so many consecutive ranks count as one."""
    num_ranks = num_nodes * ranks_per_node
    if replication < 1 or num_ranks % replication:
        raise ConfigError(
            f"replication={replication} does not divide the {num_ranks} ranks: choose one that does"
        )
    num_groups = num_ranks // replication
    # Whole nodes stay nodes; otherwise the order sees a single one.
    num_nodes = num_groups // ranks_per_node if num_groups % ranks_per_node == 0 else 1
    return num_nodes, num_groups // num_nodes
