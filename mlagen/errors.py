"""Every exception that mlagen raises on purpose.

    MlagenError
    ├── SpecError            a spec file or dict: field, position, advice            exit status 2
    │   └── UnsupportedError an option that no kernel implements yet                 exit status 2
    ├── PlanError            a spec that does not fit the architecture               exit status 2
    ├── CompileError         NVRTC or the SASS lint refused a rendered kernel        exit status 1
    ├── CheckError           `build --check` found a difference                      exit status 1
    ├── CacheError           a folder of kernels that cannot be read or written      exit status 3
    ├── MissingDependencyError  no GPU, no driver, no NVRTC, no torch                exit status 3
    │   └── DriverError      a CUDA driver call failed                               exit status 3
    ├── SimulationError      the simulator cannot run what it was given              exit status 2
    │   ├── UnsupportedPtxError  instructions that it does not know
    │   ├── ScheduleError    a schedule that it does not know, or a recording of another run
    │   └── FindingsError    it ran a kernel, and the kernel breaks rules            exit status 1
    ├── PtxError             PTX text that the simulator cannot read                 exit status 2
    ├── NoKernelError        no built variant matches the tensors                    exit status 2
    └── InputError           tensors or arguments given to `run`                     exit status 2
        ├── ShapeError
        ├── DTypeError
        └── DeviceError

Messages have one form: the first line says where and what, the last line how to mend it.
"""

from __future__ import annotations


class MlagenError(Exception):
    """Base of all errors raised on purpose; `str()` is ready to be shown to a user."""

    exit_status = 2


class SpecError(MlagenError):
    """A spec is not valid; the message lists every error found, in file order."""


class UnsupportedError(SpecError):
    """A spec is valid, but no kernel implements it yet."""


class PlanError(MlagenError):
    """A spec does not fit its architecture; the message shows the budget and a configuration that fits."""


class CompileError(MlagenError):
    """NVRTC or the SASS lint refused a rendered kernel; the message holds the evidence."""

    exit_status = 1


class CheckError(MlagenError):
    """A check failed, such as `build --check`."""

    exit_status = 1


class CacheError(MlagenError):
    """A cache or kernel folder cannot be used."""

    exit_status = 3


class MissingDependencyError(MlagenError):
    """Something that the machine must have is not there: a GPU, a driver, NVRTC, torch."""

    exit_status = 3


class DriverError(MissingDependencyError):
    """A CUDA driver call failed; the message names the call and the driver's own words."""


class SimulationError(MlagenError):
    """The simulator cannot run a kernel with these arguments."""


class UnsupportedPtxError(SimulationError):
    """An instruction, or a form of one, that the simulator does not know.

    A decoder raises it with what it does not know (`modifier .foo`); lowering collects all of a kernel's and raises one
    that lists every opcode with its first line and how often it occurs.
    """


class ScheduleError(SimulationError):
    """A schedule that does not exist, or a recording that does not fit the run."""


class FindingsError(SimulationError):
    """The simulator ran a kernel and found errors in it; the message is the report."""

    exit_status = 1


class PtxError(MlagenError):
    """PTX text does not follow the grammar; the message begins with its line."""


class NoKernelError(MlagenError):
    """No variant of the loaded spec matches the tensors; the message names the nearest and how to add the missing."""


class InputError(MlagenError):
    """An argument of `run` is missing, unknown or contradicts another."""


class ShapeError(InputError):
    """A tensor has the wrong shape or strides."""


class DTypeError(InputError):
    """A tensor has the wrong dtype."""


class DeviceError(InputError):
    """A tensor is on the wrong device."""
