"""Options that PyTorch hands over as text: those of the job's lock, and those of the backend."""

from typing import Any, Dict, Mapping, Optional, Tuple

from ._runtime import Runtime

_FILES = ("token_file", "cert", "key", "ca", "tls_name")
_TRUE, _FALSE = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


def _flag(key: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(f"the option {key} is true or false: not {value!r}")
    return text in _TRUE


def split(options: Mapping[str, Any]) -> Tuple[Optional[Runtime], Dict[str, Any]]:
    """Divides options into a runtime with the lock that they name, and those of the backend.
    Without options of the lock there is no runtime: the process's own has the lock that the
    environment names."""
    rest = dict(options)
    lock: Dict[str, Any] = {key: str(rest.pop(key)) for key in _FILES if key in rest}
    if "insecure" in rest:
        lock["insecure"] = _flag("insecure", rest.pop("insecure"))
    if "tls_name" in lock:
        lock["name"] = lock.pop("tls_name")
    return (Runtime(**lock) if lock else None), rest
