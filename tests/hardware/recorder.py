"""Run cases on a GPU, in child processes: a fault costs one case, a hang a few seconds."""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.runtime.driver import system_driver
from tests.hardware.case import Case, Map, Pointer
from tests.hardware.recordings import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

ARENA_BYTES = 256 << 20
GAP_BYTES = 4096
FIRST_ANSWER_S, ANSWER_S = 90.0, 20.0
SAVE_EVERY_S = 30.0


def record(
    cases: Sequence[Case],
    cubin_of: Callable[[str], bytes],
    save: Callable[[Recording], None] = lambda recording: None,
) -> Recording:
    """Answers to all cases, each asked twice.

    Args:
        cases: In the order in which they run.
        cubin_of: A module's machine code.
        save: Called now and then with what there is.
    """
    recording, saved = Recording(), time.monotonic()
    context = multiprocessing.get_context("fork")  # nothing here has touched CUDA
    at = 0
    while at < len(cases):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_answer, args=(cases[at:], cubin_of, sender))
        child.start()
        sender.close()
        at += _collect(cases[at:], receiver, recording)
        child.kill()
        child.join()
        if time.monotonic() - saved > SAVE_EVERY_S:
            save(recording)
            saved = time.monotonic()
    save(recording)
    return recording


def _collect(cases: Sequence[Case], receiver: Connection, recording: Recording) -> int:
    """Take a child's answers until it ends; how many cases are done then, one that failed included."""
    for done, case in enumerate(cases):
        limit = ANSWER_S if done else FIRST_ANSWER_S
        try:
            answer = receiver.recv() if receiver.poll(limit) else f"no answer in {limit:.0f} s"
        except EOFError:
            answer = "the process ended"
        if isinstance(answer, str):
            recording.failures[case.name] = answer
            print(f"{case.name}: {answer}", flush=True)
            return done + 1
        first, second = answer
        recording.outputs[case.name] = first
        if first != second:
            recording.unstable.append(case.name)
    return len(cases)


def _answer(cases: Sequence[Case], cubin_of: Callable[[str], bytes], sender: Connection) -> None:
    """In the child: send each case's two answers, or the error that ends it."""
    try:
        device = Device(cubin_of)
        for case in cases:
            sender.send((device.run(case), device.run(case)))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}".splitlines()[0])


class Device:
    """A context, one block of memory, loaded modules."""

    def __init__(self, cubin_of: Callable[[str], bytes]) -> None:
        """Make the context current in this thread."""
        from cuda.bindings import driver as cuda

        self._cuda = cuda
        self._driver = system_driver()
        self._driver.push_context(self._driver.primary_context(0))
        self._cubin_of = cubin_of
        self._modules: dict[str, Any] = {}  # Any: untyped handles
        self._functions: dict[tuple[str, str, int], Any] = {}
        self._arena = int(self._call("cuMemAlloc", ARENA_BYTES))

    def _call(self, name: str, *arguments: Any) -> Any:
        """A driver call's result; an error says which call it was."""
        code, *results = getattr(self._cuda, name)(*arguments)
        if int(code):
            raise RuntimeError(f"{name}: {getattr(code, 'name', code)}")
        return results[0] if results else None

    def _function(self, case: Case) -> Any:
        key = (case.module, case.entry, case.shared_bytes)
        if key not in self._functions:
            if case.module not in self._modules:
                self._modules[case.module] = self._call(
                    "cuModuleLoadData", self._cubin_of(case.module)
                )
            function = self._call(
                "cuModuleGetFunction", self._modules[case.module], case.entry.encode()
            )
            if case.shared_bytes > 48 * 1024:
                self._driver.allow_shared_memory(int(function), case.shared_bytes)
            self._functions[key] = function
        return self._functions[key]

    def run(self, case: Case) -> tuple[bytes, ...]:
        """The output buffers after one launch."""
        function = self._function(case)
        arrays = [np.ascontiguousarray(buffer.data) for buffer in case.buffers]
        addresses, at = [], self._arena + GAP_BYTES
        for array in arrays:
            addresses.append(at)
            at += -(-array.nbytes // 256) * 256 + GAP_BYTES
        assert at <= self._arena + ARENA_BYTES, case.name
        pointer = self._cuda.CUdeviceptr
        for address, array in zip(addresses, arrays, strict=True):
            self._call("cuMemcpyHtoD", pointer(address), array.ctypes.data, array.nbytes)
        packed = [
            np.frombuffer(self._parameter(one, addresses), np.uint8) for one in case.parameters
        ]
        table = (ctypes.c_void_p * len(packed))(*(one.ctypes.data for one in packed))
        self._call(
            "cuLaunchKernel",
            function,
            *case.grid,
            *case.block,
            case.shared_bytes,
            self._cuda.CUstream(0),
            ctypes.addressof(table),
            0,
        )
        self._call("cuCtxSynchronize")
        outputs = []
        for address, array, buffer in zip(addresses, arrays, case.buffers, strict=True):
            if buffer.is_output:
                result = np.empty_like(array)
                self._call("cuMemcpyDtoH", result.ctypes.data, pointer(address), result.nbytes)
                outputs.append(result.tobytes())
        return tuple(outputs)

    def _parameter(self, parameter: Pointer | Map | bytes, addresses: list[int]) -> bytes:
        if isinstance(parameter, Pointer):
            return (addresses[parameter.buffer] + parameter.offset).to_bytes(8, "little")
        if isinstance(parameter, Map):
            return self._driver.encode_tensor_map(parameter.spec(addresses[parameter.buffer]))
        return parameter
