"""How much each stream gives to an epoch: proportions, repeats or counts become exact numbers of samples."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWeight:
    """The weight of one stream: relative (`proportion`), in passes (`repeat`) or in samples (`choose`).

    At most one of them; none means one pass, or a share by size if the epoch has a given size.
    """

    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        if len(given) > 1:
            raise ConfigError(
                f"a stream can have only one weight, but this one has {' and '.join(given)}: leave out all but one"
            )
        for name, value in given.items():
            if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
                raise ConfigError(f"{name}={value!r} is not a weight: use a number of 0 or more")

    @classmethod
    def of(
        cls,
        *,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | float | str | None = None,
        samples: int | float | str | None = None,
    ) -> StreamWeight:
        """Read a weight as people write it: 1e6 or "1.5b" samples; `samples` is the old name of `choose`."""
        if samples is not None:
            warnings.warn("samples= was renamed to choose=: use choose= instead", DeprecationWarning, stacklevel=2)
            if choose is not None:
                raise ConfigError("samples= is the old name of choose=: pass only choose=")
            choose = samples
        return cls(proportion=proportion, repeat=repeat, choose=None if choose is None else parse_count(choose))


def read_epoch_size(
    epoch_size: int | float | str | None, samples_per_epoch: int | float | str | None = None
) -> int | None:
    """Read the size of an epoch as people write it; `samples_per_epoch` is its old name."""
    if samples_per_epoch is not None:
        message = "samples_per_epoch= was renamed to epoch_size=: use epoch_size= instead"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        if epoch_size is not None:
            raise ConfigError("samples_per_epoch= is the old name of epoch_size=: pass only epoch_size=")
        epoch_size = samples_per_epoch
    if epoch_size is None:
        return None
    size = parse_count(epoch_size)
    if size < 1:
        raise ConfigError(f"epoch_size={epoch_size!r} leaves nothing to train on: set it to 1 or more")
    return size


def count_samples(weights: Sequence[StreamWeight], sizes: Sequence[int], epoch_size: int | None = None) -> list[int]:
    """Return the exact number of samples that each stream gives to an epoch."""
    is_relative = [weight.proportion is not None for weight in weights]
    if any(is_relative) and not all(is_relative):
        raise ConfigError("some streams have a proportion and some do not: give every stream a proportion, or none")
    is_weighted = any(weight.repeat is not None or weight.choose is not None for weight in weights)
    if is_weighted and epoch_size is not None:
        raise ConfigError("repeat and choose already determine the size of an epoch: leave out epoch_size")
    if all(is_relative) or epoch_size is not None:
        shares = [
            Fraction(size if weight.proportion is None else weight.proportion)
            for weight, size in zip(weights, sizes, strict=True)
        ]
        counts = apportion(shares, sum(sizes) if epoch_size is None else epoch_size)
    else:
        counts = [
            weight.choose if weight.choose is not None else size if weight.repeat is None else int(weight.repeat * size)
            for weight, size in zip(weights, sizes, strict=True)
        ]
    for number, (count, size) in enumerate(zip(counts, sizes, strict=True)):
        if count and not size:
            raise ConfigError(f"stream {number} should give {count} samples, but it is empty: set its weight to 0")
    if not sum(counts):
        raise ConfigError("no stream gives any samples: give at least one of them a weight above 0")
    return counts


def apportion(shares: Sequence[Fraction], total: int) -> list[int]:
    """Split a number by shares into integers; what rounding leaves over goes to the largest fractions."""
    everything = sum(shares, Fraction(0))
    if not everything:
        raise ConfigError("all proportions are 0: give at least one stream a proportion above 0")
    exact = [share * total / everything for share in shares]
    counts = [math.floor(share) for share in exact]
    by_fraction = sorted(range(len(shares)), key=lambda number: (counts[number] - exact[number], number))
    for number in by_fraction[: total - sum(counts)]:
        counts[number] += 1
    return counts
