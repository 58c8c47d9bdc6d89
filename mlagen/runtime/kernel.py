"""`load(...)` and `Kernels.run(...)`: the kernels of a spec as one callable object."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlagen.errors import DeviceError, InputError
from mlagen.runtime import driver as driver_module
from mlagen.runtime.addressing import check_strides
from mlagen.runtime.arguments import parse_call
from mlagen.runtime.binaries import Binaries, JitPolicy
from mlagen.runtime.cuda_launch import Recipe
from mlagen.runtime.device import devices_of
from mlagen.runtime.device_values import check_device_values
from mlagen.runtime.dispatch import normalised, select
from mlagen.runtime.inputs import check_presence, check_tensors
from mlagen.runtime.known_calls import KnownCalls
from mlagen.runtime.preference import reluctance
from mlagen.runtime.simulator import Simulated, Simulator, run_simulated
from mlagen.settings import Settings
from mlagen.spec.model import KernelSpec, SpecFile
from mlagen.verify.arrays import round_to

if TYPE_CHECKING:
    from mlagen.cache import KernelCache
    from mlagen.runtime.arguments import Call
    from mlagen.runtime.device import Device

Backend = Literal["cuda", "sim", "reference", "auto"] | Simulator
SpecSource = str | Path | Mapping[str, Any] | SpecFile | KernelSpec | Sequence[KernelSpec]

logger = logging.getLogger(__name__)


def load(
    spec: SpecSource,
    *,
    kernels: str | Path | None = None,
    jit: JitPolicy = "auto",
    cache: KernelCache | None = None,
    backend: Backend = "cuda",
) -> Kernels:
    """The kernels of a spec, ready to run. Touches no GPU and compiles nothing: `run` and `warmup` do.

    Args:
        spec: Path of a spec file, its contents as a dict, a `SpecFile`, one or several
            `KernelSpec`, or a folder that `mlagen build --out` wrote.
        kernels: Such a folder, to take the machine code from; by default the one that
            MLAGEN_KERNELS names. What it lacks comes from the cache.
        jit: `auto` compiles a kernel that is nowhere to be found when it is first needed, never
            while a CUDA graph is captured; `never` raises NoKernelError instead.
        cache: Where compiled kernels are kept; by default the folder that the settings name.
        backend: `cuda`; `sim`, the kernels themselves on the CPU, in the simulator, slowly and with
            every check, on NumPy arrays and CPU tensors (or a `Simulator`, which says how);
            `reference`, float64 on NumPy arrays and torch tensors of any device; `auto`, the
            reference for what lies on the CPU, with a notice in the log.

    Raises:
        SpecError: The spec is not valid.
        CacheError: The folder of kernels cannot be used.
    """
    if jit not in ("auto", "never"):
        raise InputError(f"jit: {jit!r} is neither auto nor never\n  pass one of them")
    if backend == "sim":
        backend = Simulator()
    if not isinstance(backend, Simulator) and backend not in ("cuda", "reference", "auto"):
        message = f"backend: {backend!r} is none of cuda, sim, reference, auto"
        raise InputError(f"{message}\n  pass one of them")
    settings = Settings.from_environment()
    folder = kernels if kernels is not None else settings.kernels
    if isinstance(spec, str | Path) and Path(spec).is_dir():
        folder, source = spec, str(spec)
        specs = None
    else:
        specs, source = _specs_of(spec)
    built = []
    if folder is not None:
        from mlagen.artifacts import open_kernels

        built = open_kernels(Path(folder))
    if specs is None:
        specs = tuple(kernel.plan.spec for kernel in built)
    binaries = Binaries(built=built, cache=cache, jit=jit, source=source)
    return Kernels(specs, binaries=binaries, backend=backend, source=source)


def _specs_of(spec: SpecSource) -> tuple[tuple[KernelSpec, ...], str]:
    """The kernels of a spec in any form, and a name for messages."""
    from mlagen.spec.yaml import load_spec_file, spec_from_dict

    if isinstance(spec, KernelSpec):
        return (spec,), "the spec"
    if isinstance(spec, SpecFile):
        return spec.expand(), spec.name
    if isinstance(spec, str | Path):
        return load_spec_file(Path(spec)).expand(), str(spec)
    if isinstance(spec, Mapping):
        return spec_from_dict(dict(spec)).expand(), "the spec"
    if isinstance(spec, list | tuple) and all(isinstance(item, KernelSpec) for item in spec):
        return tuple(spec), "the spec"
    message = f"spec: expected a path, dict, SpecFile or KernelSpec, got {type(spec).__name__}"
    raise InputError(f"{message}\n  pass the path of a spec file")


class Kernels:
    """The kernels of a loaded spec. Safe to share between threads, streams and devices.

    Attributes:
        specs: What was loaded, in the order of the file.
    """

    def __init__(
        self, specs: Sequence[KernelSpec], *, binaries: Binaries, backend: Backend, source: str
    ) -> None:
        """See `load`."""
        self.specs = tuple(specs)
        self._binaries = binaries
        self._backend = backend
        self._source = source
        self._known = KnownCalls()
        self._noticed = False
        self._most_blocks: int | None = None

    @property
    def most_blocks(self) -> int | None:
        """Most blocks of a launch on a GPU, where a block walks several tiles; None for one an SM.

        With few, each block walks many tiles, which tests want and nobody else.
        """
        return self._most_blocks

    @most_blocks.setter
    def most_blocks(self, most_blocks: int | None) -> None:
        self._most_blocks = most_blocks
        self._known = KnownCalls()

    def run(self, tensors: Mapping[str, Any] | None = None, /, **arguments: Any) -> Any:
        """Compute attention on the current stream of the tensors' device.

        Nothing on the device is read back and nothing waits; outputs are all that is allocated, and
        room for partial results where blocks share keys.
        Values on the device that are wrong give wrong rows, never an access outside the tensors.
        Capturable in a CUDA graph, which keeps the addresses of this call's tensors. Rows of the
        output that no sequence covers are left as they are; a batch without sequences gives zeros.

        Args:
            tensors: Arguments by name; the same as keywords.
            **arguments: Tensors, with aliases in parentheses:

                - q `[total_q, H, qk]`, or `[batch, seqlen_q, H, qk]` in a dense batch; or q_nope and
                  q_pe, which are its first and last columns
                - k (k_nope) `[total_k, H, qk]`, `[batch, seqlen_k, H, qk]` in a dense batch, or
                  `[pages, page_size, H, qk]`; without the rope columns where there is k_rope
                - v like k
                - k_rope (kpe) `[total_k, rope]`, or cache rows `[batch, seqlen_k, width]` or
                  `[pages, page_size, width]`; several rope heads stand before the last dimension
                - block_table (page_table) int32 `[batch, max_pages]`, of k, v and k_rope in pages
                - cu_seqlens_q, cu_seqlens_k (qo_indptr, kv_indptr) int32 `[batch + 1]`
                - cache_seqlens (seq_lens) int32 `[batch]`
                - valid_lengths int32 `[batch]`: the keys of a sequence before its padding
                - sinks, alibi_slopes float32 `[H]`
                - bias float32 `[q, k]`, `[batch, q, k]` or `[batch, H, q, k]` of any strides but that
                  of k, q and k counted in each sequence; all but k may be 1, and what lies outside is
                  hidden
                - relative_bias float32 `[total_q, H, extent]` or `[batch, seqlen_q, H, extent]`
                - out, lse: written instead of new tensors

                and options:

                - mask, score_mod as in a spec; or causal, window_size, attention_chunk, softcap
                  (logits_soft_cap) as FlashAttention means them
                - kv_length_counts, where kernels of both are loaded
                - return_lse (return_softmax_lse)
                - softmax_scale (sm_scale), by default the model's own
                - q_scale, k_scale, v_scale (q_descale, ...) of float8_e4m3fn tensors, by default 1:
                  floats by which their values are multiplied
                - max_seqlen_q, max_seqlen_k: ints
                - validate: also check lengths and page ids on the device, which synchronises

        Returns:
            `out` `[total_q, H, v]`, or `(out, lse)` with `return_lse=True`: lse float32 `[total_q,
            H]`, natural log, without the sink, -inf for a row that sees no key.

        Raises:
            InputError: An argument is wrong; names it, what was expected and what came.
            NoKernelError: No loaded kernel computes this.
            DriverError: CUDA refused.
            FindingsError: The simulator has found an error in the kernel.
        """
        given = arguments if tensors is None else _merged(tensors, arguments)
        recipe = self._known.find(given)
        return self._run_first(given) if recipe is None else recipe.run(given)

    def simulate(
        self,
        tensors: Mapping[str, Any] | None = None,
        /,
        *,
        simulator: Simulator | None = None,
        **arguments: Any,
    ) -> Simulated:
        """Compute attention in the simulator, whatever the backend; findings come back as values.

        Args:
            tensors: As in `run`; NumPy arrays, or torch tensors on the CPU.
            simulator: How; None for the one that was loaded, or the usual one.
            **arguments: As in `run`.

        Raises:
            InputError: An argument is wrong.
            NoKernelError: No loaded kernel computes this.
            SimulationError: The simulator cannot run this kernel.
        """
        if simulator is None:
            simulator = self._backend if isinstance(self._backend, Simulator) else Simulator()
        given = arguments if tensors is None else _merged(tensors, arguments)
        return self._run_simulated(_checked_call(given), simulator)

    def warmup(self, device: int | None = None) -> None:
        """Fetch the machine code of every kernel, compiling what is missing, and load it on a device.

        Call it before capturing a graph and before serving.

        Args:
            device: CUDA ordinal to load on the kernels of its architecture; None to fetch only,
                which needs no GPU.
        """
        if device is None:
            self._binaries.get_all(self.specs)
            return
        target = devices_of(driver_module.system_driver()).get(device)
        specs = [spec for spec in self.specs if spec.arch == target.arch.name]
        for plan, cubin in self._binaries.get_all(specs):
            target.function(plan, cubin)

    def _run_first(self, arguments: dict[str, Any]) -> Any:
        """A call that is like none before."""
        known = self._known  # before `most_blocks` is read: it changes after it
        call = _checked_call(arguments)
        if isinstance(self._backend, Simulator):
            simulated = self._run_simulated(call, self._backend)
            simulated.check()
            return (simulated.out, simulated.lse) if call.options.return_lse else simulated.out
        ordinal = self._cuda_ordinal(call)
        if ordinal is None:
            return self._run_reference(call)
        _refuse_gradients(call)
        recipe = self._prepare(devices_of(driver_module.system_driver()).get(ordinal), call)
        if not call.options.validate:
            known.add(arguments, recipe)
        return recipe.run(arguments)

    def _prepare(self, device: Device, call: Call) -> Recipe:
        """Choose, check, load."""
        spec = select(
            self.specs, call, arch=device.arch.name, source=self._source, reluctance=reluctance
        )
        extents = check_tensors(spec, call)
        check_strides(call)
        if call.options.validate:
            check_device_values(spec, call, extents)
        with device.current():
            capturing = device.driver.is_capturing(device.driver.current_stream(device.ordinal))
        plan, cubin = self._binaries.get(spec, capturing=capturing)
        function = device.function(plan, cubin)
        return Recipe(
            device=device,
            plan=plan,
            function=function,
            call=call,
            extents=extents,
            grid_limit=device.sm_count if self._most_blocks is None else self._most_blocks,
        )

    def _cuda_ordinal(self, call: Call) -> int | None:
        """The CUDA ordinal of the tensors; None if the reference is to compute them."""
        name = "q" if "q" in call.tensors else "q_nope"
        query, written = call.tensors[name], call.written[name]
        on_host = not hasattr(query, "data_ptr") or query.device.type == "cpu"
        if self._backend == "reference":
            return None
        if self._backend == "auto" and on_host:
            if not self._noticed:
                self._noticed = True
                logger.warning(
                    "%s lies on the CPU: computing with the float64 reference, not a kernel",
                    written,
                )
            return None
        if not hasattr(query, "data_ptr"):
            message = (
                f"{written}: a {type(query).__name__}, and the kernels run on CUDA tensors of torch"
            )
            raise DeviceError(
                f"{message}\n  pass torch tensors, or load with backend='sim' or 'reference'"
            )
        ordinal = driver_module.system_driver().ordinal_of(query.device)
        if ordinal is None:
            message = f"{written}: on {query.device}, and the kernels run on CUDA devices"
            raise DeviceError(
                f"{message}\n  move the tensors with .cuda(), or load with backend='sim' or 'reference'"
            )
        return ordinal

    def _run_simulated(self, call: Call, simulator: Simulator) -> Simulated:
        if hasattr(call.tensors["v"], "data_ptr"):
            _refuse_gradients(call)
        spec = select(
            self.specs, call, arch=simulator.arch, source=self._source, reluctance=reluctance
        )
        return run_simulated(self._binaries.get_with_lines(spec), call, simulator)

    def _run_reference(self, call: Call) -> Any:
        """Compute with float64, and round once."""
        from mlagen.verify.reference import reference

        spec = select(self.specs, call, arch=None, source=self._source, reluctance=reluctance)
        extents = check_tensors(spec, call)
        # The reference reads these values anyway.
        check_device_values(spec, call, extents)
        exact_out, exact_lse = reference(
            spec,
            call.tensors,
            softmax_scale=call.options.softmax_scale,
            **call.options.scales,
        )
        out = round_to(exact_out, str(spec.output_dtype), call.tensors.get("out"))
        lse = round_to(exact_lse, "float32", call.tensors.get("lse"))
        return (out, lse) if call.options.return_lse else out


def _checked_call(arguments: Mapping[str, Any]) -> Call:
    """The arguments of `run`, sorted; whatever no call can do without is there."""
    call = normalised(parse_call(arguments))
    check_presence(call)
    return call


def _merged(tensors: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    merged = {**tensors, **arguments}
    if len(merged) < len(tensors) + len(arguments):
        twice = min(tensors.keys() & arguments.keys())
        raise InputError(f"{twice}: given twice, in the mapping and as a keyword\n  pass it once")
    return merged


def _refuse_gradients(call: Call) -> None:
    import torch

    if not torch.is_grad_enabled():
        return
    for name, tensor in call.tensors.items():
        if getattr(tensor, "requires_grad", False):
            written = call.written[name]
            message = f"{written}: requires grad, and there is no backward pass"
            raise InputError(f"{message}\n  pass {written}.detach(), or call under torch.no_grad()")
