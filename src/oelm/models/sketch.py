"""Models without memory: built on the meta device to be counted, or to see whether they can be built at all."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """What is built inside has shapes, but no values.

    >>> with without_memory():
    ...     torch.nn.Embedding(10**9, 4096).weight.device.type
    'meta'
    """
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    """To draw what is not kept would take most of the time, and the first draw a second: torch loads its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return {**(kwargs or {}), **({"tensor": args[0]} if args else {})}["tensor"]
        return func(*args, **(kwargs or {}))
