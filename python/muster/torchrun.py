"""torchrun with muster's rendezvous: ``python -m muster.torchrun ARGUMENTS``.

The arguments are torchrun's. The backend is muster unless ``--rdzv-backend`` names another. PyTorch
2.5 and later find the backend by themselves, so that ``torchrun --rdzv-backend=muster`` does the
same; this module is for those before, back to 1.13.
"""

import os
import sys
from typing import List, Optional

#: Options of the static backend, which torchrun takes if no other is named.
_STATIC = ("--node_rank", "--master_addr", "--master_port")


def with_backend(args: List[str]) -> List[str]:
    """The arguments with the backend before them, so that one that they name wins. Where they are
    those of the static backend, or the environment names one, they stay as they are."""
    from torch.distributed import run

    rest = run.get_args_parser().parse_args(args).training_script_args
    own = [arg.split("=")[0].replace("-", "_") for arg in args[: len(args) - len(rest)]]
    static = any(arg in own for arg in ["__" + name[2:] for name in _STATIC])
    if static or "PET_RDZV_BACKEND" in os.environ:
        return args
    return ["--rdzv_backend=muster", *args]


def register() -> None:
    """Makes the backend known to PyTorch. A second call does nothing."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    from .torch import torchrun_handler

    rendezvous_handler_registry.register("muster", torchrun_handler())


def main(args: Optional[List[str]] = None) -> None:
    """Runs torchrun."""
    from torch.distributed import run

    register()
    run.main(with_backend(sys.argv[1:] if args is None else args))


if __name__ == "__main__":
    main()
