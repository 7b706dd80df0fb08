"""Python objects in messages, for agents that asked for them.

Whoever can send a pickle to a program that loads it can run anything there. So nothing here is
reached without ``pickle=True`` on the agent, and a message says that it is a pickle: an agent that
did not ask refuses it unread, and one that did loads nothing else.
"""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .errors import InvalidArgument

#: The first part of a message that holds objects; the second is the pickle.
MARK = b"muster-pickle-1"


def dumped(value: Any) -> List[bytes]:
    """A message with an object."""
    import pickle

    return [MARK, pickle.dumps(value, protocol=4)]


def loaded(parts: Sequence[bytes]) -> Any:
    """The object of a message."""
    if len(parts) != 2 or parts[0] != MARK:
        raise InvalidArgument(
            "expected a Python object, and got bytes: both ends of a call must ask for pickle"
        )
    import pickle

    return pickle.loads(parts[1])


def request(args: Sequence[Any], kwargs: Optional[Mapping[str, Any]]) -> List[bytes]:
    """The message of a call."""
    return dumped((tuple(args), dict(kwargs or {})))


def arguments(parts: Sequence[bytes]) -> Tuple[Sequence[Any], Dict[str, Any]]:
    """The arguments in the message of a call."""
    args, kwargs = loaded(parts)
    return args, kwargs


def bytes_only(parts: List[bytes]) -> List[bytes]:
    """The parts of a call to a function that takes bytes."""
    if parts and parts[0] == MARK:
        raise InvalidArgument(
            "this method takes bytes, and was sent a Python object: it was not asked to take "
            "objects (pickle=True), and has not read it"
        )
    return parts


def packed(value: Any) -> bytes:
    """An object in one piece."""
    return b"".join(dumped(value))


def unpacked(piece: bytes) -> Any:
    """The object in a piece."""
    return loaded([piece[: len(MARK)], piece[len(MARK):]])
