"""Randomness that never changes: keys from names and numbers, and draws and permutations from keys.

No generator of numpy's is used, since it does not promise its streams for ever. A key is a hash of
everything that tells one use from another (seed, epoch, stream, …) together, so that epoch 1 of seed 42 is
not epoch 0 of seed 43.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from penstock.types import Int64Array

UInt64Array: TypeAlias = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def hash_key(*words: int | str) -> int:
    """Hash words to a 64-bit key; words of other types or in another order give another key."""
    # ascii() writes integers and text the same way on every platform and release,
    # but not those of numpy.
    plain = tuple(word if isinstance(word, str) else int(word) for word in words)
    return int.from_bytes(hashlib.blake2b(ascii(plain).encode(), digest_size=8).digest(), "little")


def hash_each_key(numbers: range, *words: int | str) -> UInt64Array:
    """Return the keys of words followed by each of some numbers: `hash_key(*words, number)`, three times as fast."""
    begun = hashlib.blake2b(ascii(words)[:-1].encode(), digest_size=8)
    digests = bytearray()
    for number in numbers:
        each = begun.copy()
        each.update(b", %d)" % number)
        digests += each.digest()
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def draw(key: int, counters: UInt64Array) -> UInt64Array:
    """Return one well mixed 64-bit number for each counter: random access into the stream of a key."""
    mixed = counters * _GOLDEN
    mixed += np.uint64(key)
    _mix(mixed)
    return mixed


def draw_each(keys: UInt64Array, counters: range) -> UInt64Array:
    """Return the numbers that `draw` gives for each of some keys, a row each."""
    drawn = np.arange(counters.start, counters.stop, dtype=np.uint64) * _GOLDEN + keys[:, None]
    _mix(drawn)
    return drawn


def _mix(numbers: UInt64Array) -> None:
    """Mix in place, so that numbers that differ in one bit end up having nothing in common."""
    scratch = numbers >> np.uint64(30)
    numbers ^= scratch
    numbers *= _MIX_1
    np.right_shift(numbers, np.uint64(27), out=scratch)
    numbers ^= scratch
    numbers *= _MIX_2
    np.right_shift(numbers, np.uint64(31), out=scratch)
    numbers ^= scratch


def permutation(key: int, size: int) -> Int64Array:
    """Shuffle 0 … size − 1 by a key.

    The numbers are sorted by their draws. Each number sits in the low bits of its own draw: so plain
    sorting, which is several times faster than sorting indexes, does it, and no two keys are equal whatever
    sort is used.
    """
    num_bits = np.uint64(max(size - 1, 0).bit_length())
    numbers = np.arange(size, dtype=np.uint64)
    packed = draw(key, numbers)
    packed >>= num_bits
    packed <<= num_bits
    packed |= numbers
    packed.sort()
    packed &= (np.uint64(1) << num_bits) - np.uint64(1)
    return packed.view(np.int64)


def shuffle_each(keys: UInt64Array, sizes: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Shuffle 0 … size − 1 for each of some keys as `permutation` does: one row each, and where rows have numbers."""
    numbers = np.arange(int(sizes.max(initial=0)), dtype=np.uint64)
    num_bits = np.array([max(size - 1, 0).bit_length() for size in sizes.tolist()], dtype=np.uint64)[:, None]
    packed = draw_each(keys, range(len(numbers)))
    packed >>= num_bits
    packed <<= num_bits
    packed |= numbers
    is_number = numbers.view(np.int64) < sizes[:, None]
    packed[~is_number] = np.uint64(2**64 - 1)  # the end of a row, wherever it is sorted
    packed.sort(axis=1)
    packed &= (np.uint64(1) << num_bits) - np.uint64(1)
    return packed.view(np.int64), is_number


_INDEX_BITS = np.uint64(18)
_GROUP_BITS = np.uint64(15)


def sort_groups(key: int, first_group: int, sizes: Int64Array) -> Int64Array:
    """Shuffle runs of numbers, each run within itself, by a key and the number of its group.

    What a group becomes does not depend on which other groups are asked for with it. At most 2¹⁵ groups
    with 2¹⁸ numbers in all.
    """
    num_groups, total = len(sizes), int(sizes.sum())
    groups = np.arange(num_groups, dtype=np.uint64)
    keys = draw(key, groups + np.uint64(first_group))
    numbers = np.arange(total, dtype=np.uint64)
    packed = numbers * _GOLDEN
    if num_groups == 1:
        packed += keys[0]
    else:
        # Count from the beginning of each group, so that its draws are its own.
        keys -= (np.cumsum(sizes) - sizes).view(np.uint64) * _GOLDEN
        packed += np.repeat(keys, sizes)
    _mix(packed)
    # From the top: the group, a part of the draw, the number. The layout is fixed, for the order must be.
    packed >>= _GROUP_BITS + _INDEX_BITS
    packed <<= _INDEX_BITS
    packed |= numbers
    if num_groups > 1:
        packed |= np.repeat(groups << (np.uint64(64) - _GROUP_BITS), sizes)
    packed.sort()
    packed &= (np.uint64(1) << _INDEX_BITS) - np.uint64(1)
    return packed.view(np.int64)
