"""Calls at once: two streams, two graphs, a graph beside eager calls; captures never replayed, launches that fail.

A kernel's blocks share a ticket counter, so two launches that overlap must not share one. Few blocks and many tiles
make the overlap long; what would go wrong is a tile computed twice or never, which the poison shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from mlagen.errors import DriverError
from tests.gpu.calls import Case, Outputs, launch, make_case, make_outputs
from tests.gpu.kernels import load, spec_of
from tests.gpu.workloads import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 20
BATCH = Batch((700, 129, 300), (700, 1000, 64), heads=16)
KERNELS = {
    "causal": spec_of(mask="causal"),
    "pages of 64": spec_of(mask="causal", k_rope="paged_64"),
    "256x256": spec_of(geometry="256x256"),
}


class Run:
    """A case with its outputs and the bits that a quiet run gave."""

    def __init__(self, kernel: str, *, seed: int) -> None:
        self.case: Case = make_case(KERNELS[kernel], BATCH, seed=seed)
        self.outputs: Outputs = make_outputs(self.case)
        launch(self.case, self.outputs)
        torch.cuda.synchronize()
        self.wanted = self.outputs.bits()

    def launch(self, *, blocks: int | None = None) -> None:
        launch(self.case, self.outputs, blocks=blocks)

    def check(self) -> None:
        """Outputs are what the quiet run gave; call after a synchronisation."""
        self.outputs.check_guards(self.case.context)
        for now, wanted in zip(self.outputs.bits(), self.wanted, strict=True):
            assert torch.equal(now, wanted), (
                f"{int((now != wanted).sum())} elements differ, {self.case.context}"
            )


def capture_with_failed_launch(run: Run, graph: torch.cuda.CUDAGraph) -> None:
    """Capture a launch and one that the driver refuses."""
    with torch.cuda.graph(graph):
        run.launch()
        with pytest.raises(DriverError, match="cuLaunchKernel"):
            run.launch(blocks=0)


def capture(run: Run, *, blocks: int | None = None) -> torch.cuda.CUDAGraph:
    """A graph of four launches of one case."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            run.launch(blocks=blocks)
    return graph


def overlap(first: Run, second: Run, go: tuple[Callable[[], object], Callable[[], object]]) -> None:
    """Start both at once on two streams, again and again, and check both."""
    streams = (torch.cuda.Stream(), torch.cuda.Stream())
    for _ in range(ROUNDS):
        first.outputs.poison()
        second.outputs.poison()
        torch.cuda.synchronize()
        for stream, start in zip(streams, go, strict=True):
            with torch.cuda.stream(stream):
                start()
        torch.cuda.synchronize()
        first.check()
        second.check()


@pytest.mark.parametrize("blocks", [None, 5])
@pytest.mark.parametrize("kernel", KERNELS)
def test_two_streams_at_once(kernel: str, blocks: int | None) -> None:
    first, second = Run(kernel, seed=1), Run(kernel, seed=2)
    overlap(
        first, second, (lambda: first.launch(blocks=blocks), lambda: second.launch(blocks=blocks))
    )


@pytest.mark.parametrize("blocks", [None, 5])
@pytest.mark.parametrize("kernel", KERNELS)
def test_two_graphs_replayed_at_once(kernel: str, blocks: int | None) -> None:
    first, second = Run(kernel, seed=1), Run(kernel, seed=2)
    graphs = (capture(first, blocks=blocks), capture(second, blocks=blocks))
    overlap(first, second, (graphs[0].replay, graphs[1].replay))


@pytest.mark.parametrize("blocks", [None, 5])
@pytest.mark.parametrize("kernel", KERNELS)
def test_graph_beside_eager_calls(kernel: str, blocks: int | None) -> None:
    first, second = Run(kernel, seed=1), Run(kernel, seed=2)
    graph = capture(first, blocks=blocks)

    def eager() -> None:
        for _ in range(4):
            second.launch(blocks=blocks)

    overlap(first, second, (graph.replay, eager))


def test_capture_on_the_stream_of_eager_calls_that_still_run() -> None:
    """The counter of a captured launch is not that of the stream it was captured on."""
    first, second = Run("causal", seed=1), Run("causal", seed=2)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        first.launch(blocks=4)
        with torch.cuda.graph(graph, stream=stream):
            second.launch(blocks=4)
        first.launch(blocks=4)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        graph.replay()
    torch.cuda.synchronize()
    first.check()
    second.check()


def test_capture_never_replayed_leaves_nothing_behind() -> None:
    run = Run("causal", seed=1)
    for _ in range(3):
        graph = capture(run)
        del graph
        run.outputs.poison()
        run.launch()
        torch.cuda.synchronize()
        run.check()


def test_graph_outlives_its_kernels_object_and_later_captures() -> None:
    run, other = Run("causal", seed=1), Run("causal", seed=2)
    graph = capture(run)
    load.cache_clear()
    for _ in range(3):
        capture(other).replay()
    run.outputs.poison()
    graph.replay()
    torch.cuda.synchronize()
    run.check()


def test_failed_launch_leaves_no_wrong_counter() -> None:
    """The driver refuses a grid of 0 blocks; the next calls on the same stream are right."""
    run = Run("causal", seed=1)
    for _ in range(3):
        with pytest.raises(DriverError, match="cuLaunchKernel"):
            run.launch(blocks=0)
        run.outputs.poison()
        run.launch(blocks=4)
        torch.cuda.synchronize()
        run.check()


def test_failed_launch_inside_a_capture_leaves_no_wrong_counter() -> None:
    run = Run("causal", seed=1)
    graph = torch.cuda.CUDAGraph()
    # The driver ends a capture in which a launch failed; what was captured before it is lost with it.
    with pytest.raises(RuntimeError, match="capture"):
        capture_with_failed_launch(run, graph)
    later = capture(run, blocks=4)
    for replayed in (later, capture(run), later):
        run.outputs.poison()
        replayed.replay()
        torch.cuda.synchronize()
        run.check()


def test_empty_batch_inside_a_graph() -> None:
    """Case 4: no keys, no pages, a page table of width 0; zeros and -inf, eager and captured."""
    spec = KERNELS["pages of 64"]
    case = make_case(spec, Batch((4,) * 16, (0,) * 16, heads=16), seed=0)
    assert case.tensors["k_rope"].shape[0] == 0
    assert case.tensors["block_table"].shape == (16, 0)
    outputs = make_outputs(case)
    assert outputs.lse is not None
    launch(case, outputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(case, outputs)
    for _ in range(2):
        torch.cuda.synchronize()
        outputs.check_guards(case.context)
        assert bool((outputs.out.view == 0).all())
        assert bool(torch.isneginf(outputs.lse.view).all())
        outputs.poison()
        graph.replay()


def test_graph_replays_with_new_values_in_the_same_tensors() -> None:
    """What lies in the captured tensors at the time of the replay counts."""
    run, other = Run("causal", seed=1), Run("causal", seed=2)
    graph = capture(run)
    for name, tensor in run.case.tensors.items():
        tensor.copy_(other.case.tensors[name])
    run.outputs.poison()
    graph.replay()
    torch.cuda.synchronize()
    run.wanted = other.wanted
    run.check()
