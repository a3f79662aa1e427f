"""What MosaicML Streaming's `distributed` gives, from torch's and from the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.data.seat import find_seat
from penstock.errors import NoProcessGroupError
from penstock.extras import require

if TYPE_CHECKING:
    import torch


def get_rank() -> int:
    """Return the rank of this process in the whole job."""
    return find_seat().rank


def get_world_size() -> int:
    """Count the ranks of the job."""
    return find_seat().world.num_ranks


def get_local_rank() -> int:
    """Return the rank of this process on its node."""
    return find_seat().local_rank


def get_local_world_size() -> int:
    """Count the ranks of a node."""
    return find_seat().world.ranks_per_node


def maybe_init_dist() -> bool:
    """Do nothing: no process group is needed here, and none has to be ended."""
    return False


def barrier() -> None:
    """Wait for all ranks, if there is more than one."""
    if _is_needed():
        _distributed().barrier()


def broadcast(tensor: torch.Tensor, src: int) -> None:
    """Broadcast the tensor of one rank to all of them, in place."""
    if _is_needed():
        _distributed().broadcast(tensor, src)


def all_gather(tensor_list: list[torch.Tensor], tensor: torch.Tensor) -> None:
    """Fill the list with the tensors of all ranks."""
    if _is_needed():
        _distributed().all_gather(tensor_list, tensor)
    else:
        tensor_list[0] = tensor


def all_gather_object(obj: Any) -> list[Any]:
    """Return a list of the objects of all ranks."""
    if not _is_needed():
        return [obj]
    gathered = [None] * get_world_size()
    _distributed().all_gather_object(gathered, obj)
    return list(gathered)


def _is_needed() -> bool:
    """Return whether there is anybody to talk to; ranks without a process group cannot, which is an error."""
    distributed = _distributed()
    if distributed.is_available() and distributed.is_initialized():
        return True
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if num_ranks > 1:
        raise NoProcessGroupError(
            f"this job has {num_ranks} ranks but no process group: call torch.distributed.init_process_group() first"
        )
    return False


def _distributed() -> Any:
    return require("torch.distributed", extra="torch", purpose="streaming.base.distributed")
