"""Tiles whose keys are shared out over blocks: which keys a part has, its state, who merges, and by what weights."""

from __future__ import annotations

from tests.mutation.rules.edits import replaced

RULES = (
    replaced(
        "part-blocks-overlap",
        "a part begins a block early",
        r"(?<=tile\.part \* least) \+ min\(tile\.part, uneven\)",
        "",
    ),
    replaced(
        "part-block-missing",
        "no part has the blocks that do not come out even",
        r" \+ \(tile\.part < uneven \? 1 : 0\)",
        "",
    ),
    replaced(
        "part-begin-ignored",
        "every part begins at the tile's first block",
        r"begin = max\((visible_begin / kTileN), tile\.begin_block\);",
        r"begin = \1;",
    ),
    replaced(
        "part-end-ignored",
        "every part ends at the tile's last block",
        r"min\((ceil_div\(visible_end, kTileN\)), tile\.end_block\)",
        r"\1",
    ),
    replaced(
        "part-too-many",
        "a part that the tile does not have is taken",
        r"return tile\.part < tile\.parts;",
        "return tile.part <= tile.parts;",
    ),
    replaced(
        "part-never-last",
        "all parts are merged by nobody",
        r"== tile\.parts - 1;",
        "== tile.parts;",
    ),
    replaced(
        "part-last-early",
        "the last but one part merges",
        r"== tile\.parts - 1;",
        "== tile.parts - 2;",
    ),
    replaced(
        "part-arrival-relaxed",
        "the state of a part is counted, and not published",
        r"atom\.acq_rel\.gpu",
        "atom.relaxed.gpu",
    ),
    replaced(
        "part-arrival-unsynchronised",
        "a part is counted before all threads have written its state",
        r"^  named_barrier_sync\(barrier, 128\);",
        "  ;",
    ),
    replaced(
        "part-arrival-of-other",
        "both groups of a tile count together",
        r"(static_cast<int64>\(tile\.first_state\)) \+ group\)",
        r"\1)",
    ),
    replaced(
        "part-last-by-thread",
        "one thread knows that its part is the last",
        r"return named_barrier_any\(barrier, 128, is_last\);",
        "named_barrier_any(barrier, 128, is_last); return is_last;",
    ),
    replaced(
        "part-state-of-group",
        "both groups of a tile have one state",
        r"(tile\.first_state \+ part\)) \+ group;",
        r"\1;",
    ),
    replaced(
        "part-state-of-tile",
        "states begin at the first tile's",
        r"tile\.first_state = ticket - tile\.part;",
        "tile.first_state = 0;",
    ),
    replaced(
        "part-state-of-thread",
        "threads share states",
        r"(kStateElements\)) \+ threadIdx\.x % 128;",
        r"\1 + threadIdx.x % 64;",
    ),
    replaced(
        "part-weight-of-nothing",
        "no guard where a part has seen no key",
        r"maximum == -infinity\(\) \? 0\.0f : (?=exp2_approx\(own_log2)",
        "",
    ),
    replaced(
        "part-weight-sign",
        "weights the other way round",
        r"own_log2 - reference_log2\)",
        "reference_log2 - own_log2)",
    ),
    replaced(
        "part-weight-removed",
        "parts are added as they are",
        r"\bweight(?:\[row\])? \* (?=state)|weight_of\(state, maximum\) \* ",
        "",
    ),
    replaced(
        "part-first-missing",
        "the merge leaves out the first part",
        r"for \(int part = 0; part < tile\.parts",
        "for (int part = 1; part < tile.parts",
    ),
    replaced(
        "part-last-missing",
        "the merge leaves out the last part",
        r"(for \(int part = 0; part < tile\.parts)(?=; \+\+part)",
        r"\1 - 1",
    ),
    replaced(
        "part-stored-by-all",
        "every part stores its own output",
        r"const bool stores = is_whole \|\| merge_parts\(([^)]*)\);",
        r"merge_parts(\1); const bool stores = true;",
    ),
    replaced(
        "part-place-kept",
        "a part that does not store keeps its place in Q",
        r"if \(elect_one\(\)\) barrier_arrive\(shared\.q_empty\[half\]\);(?=\n +continue;)",
        ";",
    ),
    replaced(
        "part-stores-unsaid",
        "the store warp is not told whether to store",
        r"if \(thread\(\) == 0\) shared\.stores\[half\] = stores;",
        ";",
    ),
)
