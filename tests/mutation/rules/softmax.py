"""Online softmax, score mods, sinks, LSE: missing rescales, reductions and guards."""

from __future__ import annotations

from tests.mutation.rules.edits import replaced

RULES = (
    replaced(
        "correct-removed", "the output keeps an old reference", r"softmax\.correct\(output\);", ";"
    ),
    replaced(
        "correct-other-row",
        "the output has the other row's correction",
        r"correction\[i / 2 % 2\]",
        "correction[1 - i / 2 % 2]",
    ),
    replaced(
        "correct-by-one-lane",
        "each lane decides by itself whether to correct",
        r"__any_sync\(kAllLanes, grew\)",
        "(grew && threadIdx.x % 4 == 0)",
    ),
    replaced(
        "sum-not-rescaled",
        "the sum keeps an old reference",
        r"sum(?:\[row\])? = __fmul_rn\(sum(?:\[row\])?, correction(?:\[row\])?\);",
        ";",
    ),
    replaced(
        "maximum-not-raised",
        "the maximum stays",
        r"maximum\[row\] = largest\[row\];|maximum = raised;",
        ";",
    ),
    replaced(
        "maximum-of-one-lane",
        "one step of a quad's maximum is missing",
        r"largest\[row\] = fmaxf\(largest\[row\], __shfl[^;]*;",
        ";",
    ),
    replaced(
        "sum-of-one-lane",
        "one step of a quad's sum is missing",
        r"sum\[row\] \+= __shfl[^;]*;",
        ";",
    ),
    replaced(
        "sum-removed",
        "the sum misses a block",
        r"sum\[row\] \+= score\[i\];|sum = \(partial[^;]*;",
        ";",
    ),
    replaced(
        "growth-negated",
        "the correction grows",
        r"exp2_approx\(-growth\)",
        "exp2_approx(growth)",
    ),
    replaced(
        "growth-of-nothing",
        "no guard where a row has seen no key",
        r"maximum(?:\[row\])? == -infinity\(\) \? 0\.0f : (?=exp2_approx\(-growth)",
        "",
    ),
    replaced(
        "reference-of-nothing",
        "-inf minus -inf where a row sees no key",
        r"(?:maximum|raw) == -infinity\(\) \? 0\.0f : (?=__fmul_rn)",
        "",
    ),
    replaced(
        "reference-other-row",
        "exponents refer to the other row",
        r"-reference_log2\[row\]",
        "-reference_log2[1 - row]",
    ),
    replaced(
        "threshold-infinite",
        "the output is never rescaled",
        r"kRescaleThreshold = [\d.]+f",
        "kRescaleThreshold = 1e30f",
    ),
    replaced(
        "threshold-zero",
        "the output is rescaled at every growth",
        r"kRescaleThreshold = [\d.]+f",
        "kRescaleThreshold = 0.0f",
    ),
    replaced(
        "scale-removed",
        "exponents are not scaled",
        r"(fmaf\(score\[i\]|multiply_add\(low, high), (?:arguments\.softmax_)?scale_log2, ",
        r"\1, 1.0f, ",
    ),
    replaced(
        "first-as-later",
        "the first block is corrected like a later one",
        r"score_to_probability<true, true>",
        "score_to_probability<false, true>",
    ),
    replaced(
        "later-as-first",
        "a later block forgets the maximum",
        r"score_to_probability<false, kMasked>",
        "score_to_probability<true, kMasked>",
    ),
    replaced(
        "reset-removed", "a tile begins with the last one's state", r"softmax\.reset\(\);", ";"
    ),
    replaced(
        "reset-incomplete",
        "a part of the state stays from tile to tile",
        r"maximum\[0\] = maximum\[1\] = -infinity\(\);|sum\[0\] = sum\[1\] = 0\.0f;|must_correct = false;",
        ";",
    ),
    replaced(
        "output-not-cleared",
        "a tile begins with the last one's output",
        r"output\[i\] = 0\.0f;",
        ";",
    ),
    replaced("finish-removed", "sums of one lane of four", r"softmax\.finish\(\);", ";"),
    replaced(
        "division-unguarded",
        "a row that sees no key is divided by 0",
        r"(?:sum|denominator) == 0\.0f \? 0\.0f : ",
        "",
    ),
    replaced(
        "normalise-removed",
        "the output is not divided by the sum",
        r"(1\.0f|arguments\.v_scale) / (?:sum|denominator)",
        r"\1",
    ),
    replaced(
        "sink-removed",
        "the sink is not part of the sum",
        r"(?:sum|denominator) \+= exp2_approx\(fmaf\(arguments\.sinks[^;]*;",
        ";",
    ),
    replaced(
        "sink-of-first-head",
        "every head has the first one's sink",
        r"sinks\[tile\.head\]",
        "sinks[0]",
    ),
    replaced("score-mod-removed", "scores are not modified", r"score_mod\.apply\([^;]*;", ";"),
    replaced(
        "softcap-sign", "the cap of the other sign", r"-2\.0f \* cap, cap", "2.0f * cap, -cap"
    ),
    replaced(
        "alibi-signed",
        "ALiBi without absolute value",
        r"fabsf\(distance - column\)",
        "(distance - column)",
    ),
    replaced(
        "alibi-row",
        "ALiBi of the first row",
        r"position \+ kRowDistance \* row - key",
        "position - key",
    ),
    replaced("lse-base", "an LSE in base 2", r"\) \* kLn2", ")"),
    replaced(
        "lse-reference", "an LSE without its reference", r"\(reference \+ (log2_approx)", r"(\1"
    ),
    replaced(
        "lse-row-guard",
        "LSE of rows behind a sequence's end",
        r"if \(row >= tile\.queries\.length\) continue;",
        ";",
    ),
    replaced(
        "lse-lane-guard",
        "all lanes of a quad write its LSE",
        r"if \(thread\(\) % 4 != 0\) return;",
        ";",
    ),
    replaced(
        "lse-narrow",
        "the place of an LSE in 32 bits",
        r"const int64 element = query \* arguments\.lse_row_stride",
        # Of unsigned numbers, whose overflow a compiler must keep.
        "const int element = uint32(query) * static_cast<uint32>(arguments.lse_row_stride)",
    ),
)
