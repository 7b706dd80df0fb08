"""Which part of a model is averaged when: the schedule of src/proto/average/fragment.h, and which
tensors are in which part.

The schedule is written again here because it is three lines, which a call of the library would not
shorten; tests/average compares the two. All peers must count the same.
"""

from typing import List, Optional, Sequence

__all__ = ["COUNT_MAX", "EVERY_MAX", "divide", "due"]

EVERY_MAX = 1 << 30
COUNT_MAX = 4096


def _rounds_after(every: int, count: int, step: int) -> int:
    """How many fragments have been due after that many steps."""
    return step // every * count + step % every * count // every


def due(every: int, count: int, step: int) -> Optional[int]:
    """The fragment that is due after that step, counted from 1; None if none is."""
    rounds = _rounds_after(every, count, step)
    if step == 0 or rounds == _rounds_after(every, count, step - 1):
        return None
    return (rounds - 1) % count


def divide(sizes: Sequence[int], count: int) -> List[List[int]]:
    """The tensors of each fragment, by their numbers, so that all rounds send about as much: the
    greatest first, each to the fragment that has least. Layers of one size go to the fragments in
    turn, so each fragment has some of every depth."""
    fragments: List[List[int]] = [[] for _ in range(count)]
    loads = [(0, 0, number) for number in range(count)]  # elements, tensors, fragment
    for tensor in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        elements, tensors, number = least = min(loads)
        loads[loads.index(least)] = (elements + sizes[tensor], tensors + 1, number)
        fragments[number].append(tensor)
    return [sorted(it) for it in fragments]
