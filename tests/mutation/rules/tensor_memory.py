"""Tensor memory: taken and freed, its columns and lanes, loads and stores not waited for, and its fences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import at_calls, doubled, gone, guarded, removed, replaced
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.mutation.source import Call, Source

_REGIONS = "scores_of|probabilities_of|output_of"
_BLOCK_SYNC = r"(?:__syncthreads|pair_sync)\(\);"


def _without_fence(calls: str, plain: str) -> Callable[[Source], Iterator[Edit]]:
    """A wait or an arrival for tensor memory, made an ordinary one."""

    def plant(source: Source) -> Iterator[Edit]:
        for call in source.calls(calls):
            name_end = source.code.index("(", call.start)
            yield Edit(call.start, name_end, plain)

    return plant


def _fence_late(source: Source, call: Call) -> Edit:
    """The arrival first."""
    barrier = source.argument(call, 0)
    return Edit(*source.statement(call), f"{{ warp_arrive({barrier}); fence_tensor_before(); }}")


def _fence_early(source: Source, call: Call) -> Edit:
    """The fence first, then the wait."""
    barrier, parity = source.argument(call, 0), source.argument(call, 1)
    text = f"{{ fence_tensor_after(); barrier_wait({barrier}, {parity}); }}"
    return Edit(*source.statement(call), text)


def _read_early(source: Source) -> Iterator[list[Edit]]:
    """The address of the columns, before the block knows that it has been written."""
    for found in source.find(r"uniform\(shared\.tensor_memory\[0\]\);", *source.body("entry")):
        line = source.code.rfind("\n", 0, found.start()) + 1
        start = line + len(source.code[line:]) - len(source.code[line:].lstrip())
        sync = next(source.find(_BLOCK_SYNC, *source.body("entry")))
        yield source.moved(start, found.end(), sync.start())


def _freed_early(source: Source) -> Iterator[list[Edit]]:
    """Before all roles have done with it: in front of the last synchronisation, or of the roles."""
    entry = source.body("entry")
    for free in source.find(r"if \([^{};]*\) tensor_memory_free\([^;]*;", *entry):
        last = list(source.find(_BLOCK_SYNC, entry[0], free.start()))[-1]
        roles = next(source.find(r"if \(warpgroup < 2\)", *entry))
        for place in (last, roles):
            yield source.moved(free.start(), free.end(), place.start())


def _waits_swapped(source: Source) -> Iterator[Edit]:
    for call in source.calls("wait_tensor_loads|wait_tensor_stores"):
        other = "stores" if source.text[call.start :].startswith("wait_tensor_loads") else "loads"
        yield Edit(call.start, call.end, f"wait_tensor_{other}()")


def _lanes(text: str) -> Callable[[Source], Iterator[Edit]]:
    """Other lanes, at each use."""

    def plant(source: Source) -> Iterator[Edit]:
        for found in source.find(r" \+ lanes_of_warp\(\)"):
            yield Edit(found.start(), found.end(), text)

    return plant


def _region_of_other_half(source: Source) -> Iterator[Edit]:
    for call in source.calls(_REGIONS):
        yield Edit(*call.arguments[1], f"1 - {source.argument(call, 1)}")


def _other_region(source: Source) -> Iterator[Edit]:
    """Scores for probabilities, probabilities for an output, an output for scores."""
    names = _REGIONS.split("|")
    following = dict(zip(names, (*names[1:], names[0]), strict=True))
    for call in source.calls(_REGIONS):
        if source.function(call.start) in names:
            continue
        name = source.code[call.start : source.code.index("(", call.start)]
        yield Edit(call.start, call.start + len(name), following[name])


RULES = (
    Rule("tensor-alloc-removed", "nobody takes tensor memory", gone("tensor_memory_allocate")),
    Rule("tensor-alloc-twice", "it is taken twice", at_calls("tensor_memory_allocate", doubled)),
    replaced(
        "tensor-alloc-by-other-warp",
        "two warps take it",
        r"if \(warp == kMmaWarp\) (?=tensor_memory_allocate)",
        "if (warp >= kMmaWarp) ",
    ),
    replaced(
        "tensor-alloc-half",
        "half of the columns are taken, and freed",
        r"(?<=kTensorMemoryColumns = )512",
        "256",
    ),
    replaced(
        "tensor-permit-kept",
        "the block keeps the permit to take more",
        r'asm volatile\("tcgen05\.relinquish_alloc_permit[^;]*;" ::: "memory"\);',
        ";",
    ),
    Rule("tensor-free-removed", "it is never freed", gone("tensor_memory_free")),
    Rule("tensor-free-twice", "it is freed twice", at_calls("tensor_memory_free", doubled)),
    Rule("tensor-free-early", "it is freed while roles use it", _freed_early),
    replaced(
        "tensor-free-part",
        "fewer columns are freed than taken",
        r'("tcgen05\.dealloc[^;]*;" ::"r"\(address\), "n"\(kTensorMemoryColumns)',
        r"\1 / 2",
    ),
    replaced(
        "tensor-free-address",
        "other columns are freed",
        r"(?<=tensor_memory_free\()shared\.tensor_memory\[0\](?=\);\n)",
        "shared.tensor_memory[0] + 32",
    ),
    replaced(
        "tensor-free-by-one-lane",
        "one lane frees it",
        r"\) (?=tensor_memory_free\()",
        " && threadIdx.x % 32 == 0) ",
    ),
    replaced(
        "tensor-free-by-two-warps",
        "two warps free it",
        r"== kMmaWarp\) (?=tensor_memory_free)",
        ">= kStoreWarp - 1 && threadIdx.x / 32 <= kStoreWarp) ",
    ),
    Rule("tensor-address-early", "its address is read before it is written", _read_early),
    Rule(
        "tensor-fence-after-removed",
        "no fence between a wait and the use of tensor memory",
        gone("fence_tensor_after"),
    ),
    Rule(
        "tensor-wait-plain",
        "a wait without the fence behind it",
        _without_fence("tensor_wait", "barrier_wait"),
    ),
    Rule(
        "tensor-fence-after-early",
        "the fence in front of the wait",
        at_calls("tensor_wait", _fence_early),
    ),
    Rule(
        "tensor-fence-before-removed",
        "no fence between the use of tensor memory and an arrival",
        gone("fence_tensor_before"),
    ),
    Rule(
        "tensor-arrive-plain",
        "an arrival without the fence before it",
        _without_fence("tensor_arrive", "warp_arrive"),
    ),
    Rule(
        "tensor-fence-before-late",
        "the fence behind the arrival",
        at_calls("tensor_arrive", _fence_late),
    ),
    Rule("tensor-loads-unawaited", "loads are not waited for", gone("wait_tensor_loads")),
    Rule("tensor-stores-unawaited", "stores are not waited for", gone("wait_tensor_stores")),
    Rule(
        "tensor-waits-swapped",
        "a wait for stores in place of loads, or the other way round",
        _waits_swapped,
    ),
    Rule(
        "tensor-waits-by-one-warp",
        "one warp waits for its loads or stores, the others go on",
        at_calls(
            "wait_tensor_loads|wait_tensor_stores",
            lambda source, call: guarded(source, call, "threadIdx.x % 128 < 32"),
        ),
    ),
    Rule(
        "tensor-store-removed",
        "some values are not stored",
        at_calls("tensor_store", removed),
    ),
    Rule(
        "tensor-load-removed",
        "some values are not loaded",
        at_calls("tensor_load_16|tensor_load_32", removed),
    ),
    Rule("tensor-lanes-missing", "every warp reaches for the first lanes", _lanes("")),
    Rule(
        "tensor-lanes-next",
        "a warp reaches for the next one's lanes",
        _lanes(" + (uniform((threadIdx.x / 32 + 1) % 4 * 32) << 16)"),
    ),
    Rule(
        "tensor-lane-on",
        "an address one lane on",
        _lanes(" + lanes_of_warp() + (1 << 16)"),
    ),
    Rule(
        "tensor-column-on",
        "an address one column on",
        _lanes(" + lanes_of_warp() + 1"),
    ),
    replaced("tensor-lanes-half", "16 lanes a warp", r"(?<=/ 32 % 4 \* )32(?=\) << 16)", "16"),
    replaced(
        "tensor-lanes-of-block",
        "lanes of a block's warps, not of a warpgroup's",
        r"(?<=threadIdx\.x / 32) % 4(?= \* 32\) << 16)",
        "",
    ),
    replaced("tensor-lanes-shift", "lanes in the bits of columns", r"\* 32\) << 16", "* 32) << 8"),
    Rule("tensor-half-other", "a region of the other half", _region_of_other_half),
    Rule("tensor-region-other", "another region", _other_region),
    replaced(
        "tensor-half-stride",
        "the halves' regions overlap",
        r"(?<= \+ half \* )(kTileN|kVHeadDim)(?=;)",
        r"\1 / 2",
    ),
    replaced(
        "tensor-output-column",
        "outputs over the probabilities",
        r"(?<=kOutputColumn = )(\d+)",
        r"\1 - 32",
    ),
    replaced(
        "tensor-output-behind",
        "outputs reach behind the last column",
        r"(?<=kOutputColumn = )(\d+)",
        "512 - 256 + 32",  # outputs have 256 columns in all
    ),
    replaced(
        "tensor-score-column",
        "scores over the outputs",
        r"(?<=kScoreColumn = )(\d+)",
        r"\1 + 32",
    ),
    replaced(
        "tensor-probability-column",
        "probabilities of one half over the scores of the other",
        r"(?<=kProbabilityOffset = )(\d+)",
        r"\1 + 32",
    ),
    replaced(
        "tensor-piece-stuck",
        "a piece of a row from, or to, another place",
        r"(?<=address) \+ (?:key|column|piece \* 16|\(piece \+ 1\) \* 16|kFirstKey / \d)",
        "",
    ),
    replaced(
        "tensor-piece-registers",
        "the registers of a load in flight are those in use",
        r"output\[\(piece \+ 1\) % 2\]",
        "output[piece % 2]",
    ),
    replaced(
        "tensor-pieces-missing",
        "pieces of a row are left out",
        r"(?<=piece < kVHeadDim / 16)(?=; \+\+piece)|(?<=key < kTileN)(?=; key)"
        r"|(?<=column < kVHeadDim)(?=; column)",
        " - 32",
    ),
)
