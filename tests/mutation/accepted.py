"""Mutants that are no faults, each with its reason. `docs/mutation.md` shows them.

A mutant belongs here if its kernel is right: by the PTX ISA, for every call, not only for the problems that are run.
One whose fault nobody notices does not: it wants a checker or a problem.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.mutation.bench import Outcome


@dataclass(frozen=True, slots=True)
class Accepted:
    """Why the mutants of some rules at places that a pattern matches are no faults.

    Attributes:
        rules: Pattern of their names, matched as a whole.
        place: Pattern of the places, searched for in `Outcome.place`.
        reason: Why.
        kernels: Pattern of the kernels in which it is so, searched for in their names.
    """

    rules: str
    place: str
    reason: str
    kernels: str = ""

    @property
    def where(self) -> str:
        """The places as a reader wants them."""
        return re.sub(r"[\\^$]", "", self.place)

    def fits(self, kernel: str, rule: str, place: str) -> bool:
        """Whether it is about this mutant."""
        return (
            re.fullmatch(self.rules, rule) is not None
            and re.search(self.place, place) is not None
            and re.search(self.kernels, kernel) is not None
        )


# Kernels whose queries see no key behind their own.
_ENDS_AT_POSITION = r"_(causal|chunk\d+|window\d+_0)_"

# Right, and slower.
_SLOWER = (
    Accepted(
        "product-wait-tight",
        r"next_block",
        "A wait for all groups is one for the older of them, too. The product of P and V then hides behind nothing.",
    ),
    Accepted(
        "registers-kept",
        r"claim_registers",
        "Code that claims no registers gets those of the launch: ptxas keeps to 168, spills 372 bytes and serialises "
        "the products (C7511, which a build reports).",
    ),
    Accepted(
        "half-block-never|half-block-without-length",
        r"MathWarpgroup\.attend",
        "The whole product is right for every block: the mask hides what the half one leaves out. The mutants take "
        "the half one never, or in fewer cases.",
    ),
    Accepted(
        "threshold-zero|rescale-always",
        r"kRescaleThreshold|CorrectionWarpgroup\.rescale",
        "A correction at every growth of a maximum is the textbook's online softmax; the threshold saves them.",
    ),
    Accepted(
        "q-wait-at-every-block",
        r"MmaWarp\.begin_block",
        "The phase stays over until the tile's end, so that each further wait passes at once.",
    ),
    Accepted(
        "first-as-later",
        r"MathWarpgroup\.first_block",
        "Corrections of the first block multiply a sum and an output that are 0 by a factor that is 0.",
    ),
    Accepted(
        "block-bound-high",
        r"\? ceil_div\(visible_end, kTileN\) : begin;",
        "The tile gets a block more, all of which the mask hides: weights of 0 meet V of the sequence, or zeros that "
        "TMA fills in.",
    ),
    Accepted(
        "handed-by-row",
        r"SoftmaxWarpgroup\.raise_maximum",
        "Each row may decide by itself. Where one of a warp has to adopt its maximum, the others do at no cost, and "
        "less often later.",
    ),
    Accepted(
        "block-bound-high|block-bound-low",
        r"full_begin = |full_end = ",
        "A block that all rows see goes through the mask, which hides nothing of it.",
    ),
    Accepted(
        "empty-tile-with-bytes",
        r"LoadWarp\.load_tile",
        "Q of a tile without keys comes, is waited for and overwritten by the output.",
    ),
    Accepted(
        "k-runs-not-ahead|q-before-k",
        r"LoadWarp\.load_tile",
        "Each buffer has barriers of its own. In these orders, too, what the math warps need next never comes behind "
        "something that waits for them; only some copies start later.",
    ),
    Accepted(
        "tile-row-order",
        r"tile_of_sequence",
        "Tiles depend on nothing but their call, so any order is right; short rows first leave the long ones for the "
        "end.",
    ),
    Accepted(
        "tensor-permit-kept|tensor-alloc-removed",
        r"relinquish_alloc_permit",
        "The block takes all columns, so that nobody else could take any while it runs; its permit ends with it.",
    ),
    Accepted(
        "elect-removed",
        r"prefetch_tensor_map",
        "A prefetch changes nothing that can be seen, once or 32 times.",
    ),
)

# Right, because something else sees to it.
_COVERED = (
    Accepted(
        "wait-by-one-lane",
        r"^(Load|Mma|Store)Warp\.",
        "`elect.sync` elects the same lane for the same member mask every time: the lane that waits is the one that "
        "alone stores, arrives and copies. CUTLASS waits like this.",
    ),
    Accepted(
        "wait-by-one-lane|wait-by-one-warp",
        r"^MathWarpgroup\.next_block: barrier_wait\(shared\.k_full",
        "All threads of the warpgroup come to the bar.sync of its turn next, which orders the wait of one before the "
        "products of all.",
    ),
    Accepted(
        "arrive-early",
        r"^MathWarpgroup\.next_tile: release\(shared\.tile_empty",
        "The load warp overwrites this slot two tiles later. Before that it has waited for `q_empty` of this tile, to "
        "load the next one's Q, and the output that is stored there comes behind the reads of the slot.",
    ),
    Accepted(
        "arrive-early",
        r"^MathWarpgroup\.attend: release\(shared\.v_empty",
        "After a tile's last V the load warp asks for V only behind Q of the next tile, for which it waits until the "
        "output, which lies in Q there, is stored: behind this product.",
        kernels=r"_256x256_",
    ),
    Accepted(
        "tensor-fence-before-removed|tensor-fence-after-removed",
        r"^entry: fence_tensor_(before|after)\(\);$",
        "Tensor memory is taken when the instruction ends, and each role's first wait for what is in it has a fence of "
        "its own. The fences make no instruction.",
    ),
    Accepted(
        "tensor-wait-plain|tensor-fence-after-early",
        r"^MmaWarp\..*shared\.(q|kv)_full",
        "Q, K and V lie in shared memory, whose order the barrier sees to. What is in tensor memory is handed over by "
        "`p_ready` and `p_last`, whose waits have the fence.",
    ),
    Accepted(
        "elect-in-every-warp",
        r"^MathWarpgroup\.return_stage|tma_store_wait_read\(\);",
        "A thread that has stored nothing has no group to wait for.",
    ),
    Accepted(
        "warp-missing",
        r"^TransposeWarp\.transpose",
        "The warp that is left out is the fourth of its warpgroup, which has nothing to transpose.",
    ),
    Accepted(
        "proxy-fence-late",
        r"^MathWarpgroup\.store_output",
        "The memory model asks for a proxy fence on the path from the write to the copy, and the thread that issues "
        "the copies still has one, behind the barrier.",
    ),
    Accepted(
        "reset-incomplete",
        r"^Softmax\.reset: must_correct = false;",
        "A tile begins with an output of 0, so a correction that the last one left over changes nothing: its factors "
        "lie between 0 and 1, scores beyond the range of fp32 aside.",
    ),
    Accepted(
        "chunk-of-negative-position",
        r"chunk_begin",
        "Under a causal chunk mask a chunk's begin is only compared with keys and with 0: for a position before the "
        "keys, 0 and a negative begin hide the same keys, none.",
        kernels=r"_chunk\d+_",
    ),
    Accepted(
        "reference-of-nothing",
        r"^CorrectionWarpgroup\.reference",
        "The weight of a part without keys does not ask for it, and the LSE of a row without keys is -inf either way.",
    ),
    Accepted(
        "status-first-block",
        r"SoftmaxWarpgroup\.attend",
        "The last block's status, too, says whether all rows see its keys: bounds of full blocks hold the end of the "
        "sequence. The kernel could do without the question.",
    ),
    Accepted(
        "status-hidden-begin",
        r"mask_status",
        "Without a left bound every half begins at the block 0.",
        kernels=r"_(full|causal)_",
    ),
    Accepted(
        "skip-released-by-one-thread|skip-released-unseen|skip-released-unseen-by-one-thread"
        "|skip-not-released|skip-without-turn",
        r"MathWarpgroup\.attend",
        "Without a mask every warpgroup sees each block of its tile, so that none is skipped.",
        kernels=r"_full_",
    ),
    Accepted(
        "arrive-early|arrive-other-barrier",
        r"^MathWarpgroup\..*release\(shared\.q_empty",
        "A block of a transient kernel has one tile: nobody asks for its place in Q again.",
        kernels=r"_transient_",
    ),
    Accepted(
        "arrive-early",
        r"^MathWarpgroup\.attend: release\(shared\.v_empty",
        "A block of a transient kernel has one tile: nobody asks for the stage of its last V again.",
        kernels=r"_transient_",
    ),
    Accepted(
        "arrive-early",
        r"^MathWarpgroup\.return_stage",
        "A block of a transient kernel has one tile: nobody asks for the stage of its output again.",
        kernels=r"_transient_",
    ),
    Accepted(
        "offset-clamp",
        r"TileFinder\.find: begin = clamp",
        "The next lines raise begin to the largest end so far, which is 0 or more; a begin behind the tensor gives a "
        "length of 0 either way.",
    ),
    Accepted(
        "page-guard-lane",
        r"page_of_lane",
        "Lanes without a box read inside the table, for the other two guards hold; nobody takes their page.",
    ),
    Accepted(
        "page-guard-length",
        r"page_of_lane",
        "The entry lies inside the table; its page, whatever it is, meets keys behind the sequence's end, which the "
        "mask hides.",
    ),
    Accepted(
        "lse-lane-guard",
        r"store_lse",
        "The four lanes of a quad hold the same sum and maximum behind their shuffles, and store the same bytes.",
    ),
    Accepted(
        "mask-length-removed",
        r"hide_masked",
        "Under causal masks, chunks and windows that look back only, no query sees a key behind its own position, and "
        "the last one stands at the last key. Rows behind the last query see more, and are not stored.",
        kernels=_ENDS_AT_POSITION,
    ),
    Accepted(
        "alibi-signed",
        r"ScoreMod\.apply",
        "Keys that a query sees under these masks do not lie behind it, so their distance is not negative; the scores "
        "of the others are replaced afterwards.",
        kernels=_ENDS_AT_POSITION,
    ),
)

# Outside of what a run of the PTX shows.
_OUTSIDE = (
    Accepted(
        "ties-removed",
        r"tie_registers",
        "The ties forbid a compiler to use registers before the wait that fills them. NVRTC does not in these kernels: "
        "if it did, the PTX would show it (wgmma-reg). A reordering by ptxas, below PTX, is outside the model.",
    ),
    Accepted(
        "lse-narrow",
        r"store_lse",
        "Needs rows that lie 2^31 elements apart. tests/mutation/test_far_rows.py plants it there, where it is caught.",
    ),
    Accepted(
        "block-order-of-products",
        r"begin_block\(1, second_half, block - 1\)",
        "Without a left bound the second half sees all blocks of its tile. tests/mutation/test_narrow_window.py "
        "plants it where it sees fewer, and it is caught.",
    ),
    Accepted(
        "rescale-unseen",
        r"CorrectionWarpgroup\.correct_halves",
        "Without a left bound a half sees all blocks but the tile's last. tests/mutation/test_narrow_window.py plants "
        "it where the second half sees fewer, and it is caught.",
        kernels=r"^(?!.*_pair_)",
    ),
    Accepted(
        "pair-fence-removed",
        r"fence_pair_release",
        "PTX lets an arrival at another block's barrier overtake earlier reads, unless a fence releases them to the "
        "cluster. The simulator lets every such arrival hand over what its warp knows, since CUTLASS relies on that.",
    ),
    Accepted(
        "part-place-kept|arrive-removed|arrive-other-barrier|arrive-full-for-empty",
        r"StoreWarp\.store: if \(elect_one\(\)\) barrier_arrive\(shared\.q_empty",
        "Where each call chooses the number of parts, there are never more than blocks, and each takes one. "
        "tests/mutation/test_fixed_parts.py plants the first in a kernel with a fixed number, where it is caught.",
    ),
    Accepted(
        "address-unmasked",
        r"descriptor_low",
        "Without clusters every block has rank 0, and the bits are 0. tests/mutation/test_cluster_kernel.py plants it "
        "in a kernel with clusters, where it is caught.",
    ),
)

# What is said of each of them, in order.
GROUPS = {
    "Right, and slower": _SLOWER,
    "Right, because something else sees to it": _COVERED,
    "Outside of what a run of the PTX shows": _OUTSIDE,
}
ACCEPTED = tuple(one for group in GROUPS.values() for one in group)


def reason(outcome: Outcome) -> str:
    """Why a survivor is accepted; empty if it is not."""
    fitting = (one for one in ACCEPTED if one.fits(outcome.kernel, outcome.rule, outcome.place))
    return next((one.reason for one in fitting), "")
