"""Work in a process of its own, with a limit of silence: on hardware that a kernel has never met it may hang or crash.

What the process has given by then is kept. Its GPU context dies with it, so the next one starts clean.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

_Item = TypeVar("_Item")
_SECONDS_TO_LEAVE = 10


@dataclass(frozen=True, slots=True)
class Outcome(Generic[_Item]):
    """What came of it.

    Attributes:
        items: What was given before the end, whatever the end was.
        error: Why it did not come to its own end; None if it did.
    """

    items: tuple[_Item, ...]
    error: str | None


def run_isolated(
    function: Callable[..., Iterator[_Item]], *arguments: object, silence_s: float
) -> Outcome[_Item]:
    """Run a generator function of a module in a new process, and collect what it yields.

    Args:
        function: A generator function of a module.
        *arguments: What it is called with; these, and what it yields, can be pickled.
        silence_s: Longest time before its first item, between two, and after the last. Then the process is killed.
    """
    # The server has imported the module and no CUDA context: children start fast, and clean.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_give, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()
    items: list[_Item] = []
    error = None
    with receiver:
        while True:
            if not receiver.poll(silence_s):
                error = f"stopped: silent for {silence_s:g} s"
                process.kill()
                break
            try:
                kind, value = receiver.recv()
            except EOFError:
                process.join(_SECONDS_TO_LEAVE)
                error = _death(process)
                break
            if kind == "item":
                items.append(value)
                continue
            error = value
            break
    # A process whose kernel hangs may outlive even a kill until the driver lets go of it: it is not waited for.
    process.join(_SECONDS_TO_LEAVE)
    if process.is_alive():
        process.kill()
    return Outcome(tuple(items), error)


def _give(
    sender: Connection, function: Callable[..., Iterator[Any]], arguments: Sequence[object]
) -> None:
    try:
        for item in function(*arguments):
            sender.send(("item", item))
    except Exception:  # whatever it is, it is the answer
        sender.send(("error", traceback.format_exc().strip()))
    else:
        sender.send(("end", None))


def _death(process: BaseProcess) -> str:
    status = process.exitcode
    if status is not None and status < 0:
        return f"died of {signal.Signals(-status).name}"
    return f"died with status {status}"
