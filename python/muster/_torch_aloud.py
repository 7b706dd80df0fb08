"""Waiting that is not silent, for launchers that say nothing by themselves."""

import logging
import threading
import time
from typing import Optional

from .errors import MusterError
from .rendezvous import Rendezvous, Round

log = logging.getLogger("muster.torch")

_FIRST = 2.0  # seconds until the first line: most rounds have begun by then
_LONGEST = 60.0  # between two lines that say the same


def _describe(rdzv: Rendezvous) -> Optional[str]:
    try:
        return rdzv.explain(_FIRST)
    except MusterError as error:
        return str(error)


def _tell(rdzv: Rendezvous, over: threading.Event) -> None:
    """Says what the round waits for: at first, when that changes, and now and then."""
    began = time.monotonic()
    last, told, pause = None, began, _FIRST
    while not over.wait(_FIRST):
        text = _describe(rdzv)
        if text is None or over.is_set():
            continue
        now = time.monotonic()
        if text != last or now - told >= pause:
            log.warning(
                "waiting for the rendezvous at %s, for %.0f s now: %s",
                rdzv.endpoint, now - began, text,
            )  # fmt: skip
            pause = _FIRST if text != last else min(2 * pause, _LONGEST)
            last, told = text, now


def next_round(rdzv: Rendezvous) -> Round:
    """``rdzv.next()``, with a warning in the log when it takes long, and what it waits for."""
    over = threading.Event()
    threading.Thread(target=_tell, args=(rdzv, over), name="muster-waiting", daemon=True).start()
    try:
        return rdzv.next()
    finally:
        over.set()
