"""Permutations of row numbers that are computed, not stored: any part of one, in any order."""

import math

import numpy as np

_ROUNDS = 6
_MULTIPLIERS = np.array([0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53], np.uint64)
_SHIFT = np.uint64(33)

Seed = tuple[int, ...]


def permuted(index: np.ndarray, num: int, seed: Seed) -> np.ndarray:
    """Give where a pseudo-random permutation of 0, ..., `num` - 1 sends some of these numbers.

    A Feistel network on pairs (left, right) with ``left + a * right`` for the number (Black and
    Rogaway, 2002, Ciphers with arbitrary finite domains, section 5). There are at most
    sqrt(num) + 1 more pairs than numbers; what lands beyond these is sent on until it does not.
    Equal seeds, whole numbers of at least 0, give equal permutations on every machine.
    """
    keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64)
    width = math.isqrt(num - 1) + 1
    sides = np.uint64(width), np.uint64(-(-num // width))
    found = _sent(np.asarray(index, np.uint64), sides, keys)
    while (beyond := found >= num).any():
        found[beyond] = _sent(found[beyond], sides, keys)
    return found.astype(np.int64)


def permuted_in_blocks(
    index: np.ndarray, num: int, block: int, window: int, seed: Seed
) -> np.ndarray:
    """Permute row numbers so that each `window` of the result holds few blocks of rows.

    The blocks of `block` successive rows are permuted first, then the rows within each window of
    the resulting order: a reader gets the rows of a window in ``window / block`` reads. With a
    block of one row, or one window for all rows, this is :func:`permuted`. Give the row at each of
    some places (places,) in the new order.
    """
    index = np.asarray(index, np.int64)
    if block == 1 or window >= num:
        return permuted(index, num, seed)
    place, number = np.empty_like(index), index // window
    for each in np.unique(number):
        first, inside = int(each) * window, number == each
        length = min(window, num - first)
        place[inside] = first + permuted(index[inside] - first, length, (*seed, 1, int(each)))
    # The rows that do not fill a block stand at a random place among the blocks.
    whole, rest = divmod(num, block)
    before = block * int(permuted(np.zeros(1), whole + 1, (*seed, 2))[0])
    in_rest = (place >= before) & (place < before + rest)
    place = np.where(place >= before + rest, place - rest, place)
    blocks = permuted(np.where(in_rest, 0, place // block), max(1, whole), (*seed, 3))
    return np.where(in_rest, whole * block + place - before, blocks * block + place % block)


def drawn(index: np.ndarray, num: int, seed: Seed) -> np.ndarray:
    """Give some of an endless list of numbers below `num`, drawn with replacement."""
    key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
    return (_mixed(np.asarray(index, np.uint64), key) % np.uint64(num)).astype(np.int64)


def _sent(index: np.ndarray, sides: tuple, keys: np.ndarray) -> np.ndarray:
    right, left = np.divmod(index, sides[0])
    for number, key in enumerate(keys):
        if number % 2:
            right = (right + _mixed(left, key)) % sides[1]
        else:
            left = (left + _mixed(right, key)) % sides[0]
    return left + sides[0] * right


def _mixed(number: np.ndarray, key: np.uint64) -> np.ndarray:
    """Mix the bits of numbers (the finaliser of MurmurHash3)."""
    with np.errstate(over="ignore"):
        mixed = number + key
        for multiplier in _MULTIPLIERS:
            mixed = (mixed ^ (mixed >> _SHIFT)) * multiplier
        return mixed ^ (mixed >> _SHIFT)
