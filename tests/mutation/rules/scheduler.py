"""Tickets and tiles: drawn twice, never, by too many; tiles announced wrongly; rows and heads."""

from __future__ import annotations

from tests.mutation.rules.edits import replaced

RULES = (
    replaced(
        "ticket-by-all-lanes", "every lane draws a ticket", r"if \(lane == 0\) (?=drawn = )", ""
    ),
    replaced(
        "ticket-without-grid",
        "drawn tickets begin at 0",
        r"ticket = gridDim\.x(?: / 2)? \+ ",
        "ticket = ",
    ),
    replaced(
        "ticket-unshared",
        "lanes have tickets of their own",
        r"__shfl_sync\(kAllLanes, drawn, 0\)",
        "drawn",
    ),
    replaced(
        "ticket-of-first-block",
        "all blocks begin with one tile",
        r"ticket = blockIdx\.x(?: / 2)?",
        "ticket = 0",
    ),
    replaced(
        "tickets-not-reset",
        "the counter is left as it is",
        r"if \(lane == 0 && drawn == [^;]*;",
        ";",
    ),
    replaced(
        "tickets-reset-early",
        "the last but one ticket resets the counter",
        r"finder\.num_tiles - 1\)",
        "finder.num_tiles - 2)",
    ),
    replaced(
        "tickets-reset-by-all",
        "every block resets the counter",
        r" && drawn == finder\.num_tiles - 1",
        "",
    ),
    replaced(
        "end-not-announced",
        "nobody says that there are no more tiles",
        r"tile\.keys\.batch = kNoTile;(\s*)announce\(tile\);",
        r"tile.keys.batch = kNoTile;\1;",
    ),
    replaced(
        "end-mark-removed", "the last tile is announced again", r"tile\.keys\.batch = kNoTile;", ";"
    ),
    replaced(
        "empty-tile-attended", "a tile without keys is computed", r"if \(!blocks\.empty\(\)\) ", ""
    ),
    replaced(
        "empty-tile-loaded",
        "a tile without keys is loaded",
        r"if \(blocks\.empty\(\)\) \{",
        "if (false) {",
    ),
    replaced(
        "empty-tile-without-q",
        "nobody hands over Q of a tile without keys",
        r"load_q\(tile, false\);",
        ";",
    ),
    replaced(
        "empty-tile-with-bytes",
        "Q of a tile without keys is loaded",
        r"load_q\(tile, false\);",
        "load_q(tile, true);",
    ),
    replaced(
        "k-runs-not-ahead",
        "V of a block is asked for before K of the next",
        r"load_k\(tile, block\);(\s*)load_v\(tile, block \+ 1\);",
        r"load_v(tile, block + 1);\1load_k(tile, block);",
    ),
    replaced(
        "q-before-k",
        "Q is asked for before the first K",
        r"load_k\(tile, blocks\.end - 1\);(\s*)load_q\(tile, true\);",
        r"load_q(tile, true);\1load_k(tile, blocks.end - 1);",
    ),
    replaced(
        "last-v-missing",
        "V of the last block is not loaded",
        r"load_v\(tile, blocks\.begin\);",
        ";",
    ),
    replaced(
        "block-order",
        "the load warp goes on to another block",
        r"load_k\(tile, block\);",
        "load_k(tile, block == blocks.begin ? block : block - 1);",
    ),
    replaced(
        "tile-head", "a tile of another head", r"- row_tile \* heads;", "- row_tile * heads + 1;"
    ),
    replaced("tile-row-order", "short rows first", r"row_tiles - 1 - row_tile", "row_tile"),
    replaced(
        "tile-rows-missing",
        "a sequence's last rows have no tile",
        r"const int row_tiles = ceil_div\(queries\.length, kTileM\)",
        "const int row_tiles = max(queries.length / kTileM, 1)",
    ),
    replaced(
        "heads-of-last-section",
        "a section has heads that there are not",
        r"min\(heads_per_section, arguments\.num_heads - first_head\)",
        "heads_per_section",
    ),
    replaced(
        "tiles-of-lane",
        "lanes count the tiles of each other's sequences",
        r"first_batch \+ lane;",
        "first_batch + (lane ^ 1);",
    ),
    replaced(
        "owner-off",
        "a ticket goes to the sequence behind its own",
        r"__ffs\(holds_ticket\) - 1",
        "__ffs(holds_ticket)",
    ),
    replaced(
        "step-of-sequences",
        "a step of the search skips sequences",
        r"first_batch \+= 32;",
        "first_batch += 33;",
    ),
    replaced(
        "offset-clamp",
        "offsets are not kept inside the tensor",
        r"clamp\((arguments\.cu_seqlens_[qk]\[[^]]*\]), [^;]*\);",
        r"\1;",
    ),
    replaced(
        "overlap-guard",
        "a sequence may begin before another's end",
        r"begin = max\(begin, [^;]*;",
        ";",
    ),
    replaced(
        "longest-guard",
        "queries beyond the longest allowed are not left out",
        r"min\(max\(end - begin, 0\), [^;]*\);",
        "max(end - begin, 0);",
    ),
    replaced(
        "cache-clamp",
        "a cached length is not kept inside its rows",
        r"min\(before \+ seqlen_q, end - begin\)",
        "before + seqlen_q",
    ),
    replaced(
        "prefix-not-counted", "cached lengths are total ones", r"before \+ seqlen_q", "before"
    ),
    replaced(
        "page-guard-lane", "lanes without a box look a page up", r"lane < kPagesPerBlock && ", ""
    ),
    replaced(
        "page-guard-table",
        "pages behind the table's end",
        r"page < arguments\.block_table_width &&",
        "true &&",
    ),
    replaced(
        "page-guard-length",
        "pages behind a sequence's end",
        r"page \* kPageSize < tile\.keys\.length;",
        "true;",
    ),
    replaced(
        "page-of-first-sequence",
        "pages of the first sequence",
        r"tile\.keys\.batch \* arguments\.block_table_stride \+ ",
        "",
    ),
    replaced("page-row", "rows of a page's start", r"row % kPageSize", "0"),
    replaced(
        "page-of-other-box",
        "the page of another box",
        r"__shfl_sync\(kAllLanes, page_of_this_lane, i\)",
        "__shfl_sync(kAllLanes, page_of_this_lane, i ^ 1)",
    ),
)
