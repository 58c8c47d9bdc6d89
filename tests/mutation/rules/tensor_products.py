"""tcgen05 products: what they are, their order, which of them accumulate, and on what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import argument, next_line, replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Edit, Source


def _scores_early(source: Source) -> Iterator[list[Edit]]:
    """Scores of the next block before the product that reads the probabilities they overwrite."""
    attend = source.body("MmaWarp.attend")
    for found in source.find(r"end_block\(0, [^;]*;", *attend):
        to = next_line(source, found.end(), r"end_block\(1, ")
        if to is not None:
            yield source.moved(found.start(), found.end(), to)
    for found in source.find(r"end_block\(1, [^;]*;", *attend):
        opening = source.code.index("{", found.end())
        yield source.moved(found.start(), found.end(), source.closing(opening))


def _other_half(source: Source) -> Iterator[Edit]:
    for call in source.calls("descriptor_q"):
        if len(call.arguments) > 1:
            yield argument(call, 1, f"1 - {source.argument(call, 1)}")
    for call in source.calls("begin_block|end_block"):
        yield argument(call, 0, f"1 - {source.argument(call, 0)}")


def _instruction(name: str, description: str, pattern: str, text: str) -> Rule:
    """A rule about the constant expressions of an instruction descriptor."""
    return replaced(f"instruction-{name}", description, pattern, text)


RULES = (
    # Its fields. PTX ISA: tcgen05, instruction descriptor.
    _instruction("sums", "sums in fp16", r"(?<=kSumsAreFp32 = )1u << 4", "0u << 4"),
    _instruction(
        "type",
        "operands of another type",
        r"(?<=kOperandsAre)(\w+) = [^;]*;",
        r"\1 = (2u << 7) | (2u << 10);",
    ),
    _instruction(
        "columns-contiguous",
        "V is read as if its keys were contiguous",
        r"(kVHeadDim), true",
        r"\1, false",
    ),
    _instruction(
        "keys-contiguous",
        "K is read as if its keys were contiguous",
        r"(kTileN), false",
        r"\1, true",
    ),
    _instruction(
        "transposed-a",
        "the first operand is read as if its rows were contiguous",
        r"static_cast<uint32>\(b_has_contiguous_columns\) << 16",
        r"1u << 15 | \g<0>",
    ),
    _instruction(
        "negated-a",
        "a product changes its sign",
        r"return kSumsAreFp32",
        r"return 1u << 13 | kSumsAreFp32",
    ),
    _instruction(
        "reserved",
        "a reserved bit is set",
        r"return kSumsAreFp32",
        r"return 1u << 6 | kSumsAreFp32",
    ),
    _instruction("n-half", "half of the columns", r"\(n / 8\) << 17", "(n / 16) << 17"),
    _instruction("n-double", "twice the columns", r"\(n / 8\) << 17", "(n / 4) << 17"),
    _instruction("m-half", "64 rows", r"\(m / 16\) << 24", "(m / 32) << 24"),
    _instruction("m-shift", "the rows in the wrong bits", r"\(m / 16\) << 24", "(m / 16) << 23"),
    replaced(
        "instruction-of-other",
        "scores are multiplied with the output's descriptor",
        r"(?<=tensor_multiply<)kScoreInstruction",
        "kOutputInstruction",
    ),
    replaced(
        "descriptor-version",
        "a matrix descriptor without the constant that marks tcgen05",
        r"0x(\d)0004(\d{3}ull)",
        r"0x\g<1>0000\2",
    ),
    # Steps.
    replaced(
        "product-step-missing",
        "a product leaves out its last columns, or keys",
        r"(?<=step < )(k\w+ / \d+)(?=; \+\+step)",
        r"\1 - 1",
    ),
    replaced(
        "product-first-step-missing",
        "a product leaves out its first columns, or keys",
        r"(?<=int step = )([^;]*)(?=; step < k)",
        r"\1 + 1",
    ),
    replaced(
        "product-part-long",
        "the first part takes probabilities that are not there yet",
        r"(?<=kFirstPartKeys = )(\d+)",
        r"\1 + 32",
    ),
    replaced(
        "probability-columns",
        "a step of keys reads the probabilities of others",
        r"probabilities \+ step \* 8",
        "probabilities + step * 4",
    ),
    replaced(
        "rope-for-nope",
        "rope columns of K are read behind its nope columns",
        r"rope_low \+ \(panel - kNopePanels\)",
        "k_low + panel",
    ),
    replaced(
        "rope-panels",
        "one panel too many is taken for nope columns",
        r"panel < kNopePanels",
        "panel <= kNopePanels",
    ),
    # Accumulation.
    replaced(
        "scores-accumulate",
        "scores are added to old ones",
        r"step % (\d) \* 2\), step != 0\)",
        r"step % \1 * 2), true)",
    ),
    replaced(
        "scores-forget",
        "scores are those of the last columns",
        r"step % (\d) \* 2\), step != 0\)",
        r"step % \1 * 2), false)",
    ),
    replaced(
        "output-accumulates",
        "the first block's output is added to an old one",
        r"accumulate \|\| step != 0",
        "true",
    ),
    replaced(
        "output-forgets-blocks",
        "the output of a block forgets the blocks before",
        r"accumulate \|\| step != 0",
        "step != 0",
    ),
    replaced(
        "output-forgets-steps",
        "the output of a block forgets its first keys",
        r"accumulate \|\| step != 0",
        "accumulate",
    ),
    replaced(
        "output-forgets-first-part",
        "the second part forgets the first",
        r"^( +)true\);",
        r"\1step != kFirstPartKeys / 16);",
    ),
    replaced(
        "accumulate-predicate",
        "the flag is taken the other way round",
        r"setp\.ne\.b32 accumulate",
        "setp.eq.b32 accumulate",
    ),
    # Who is multiplied, when.
    Rule(
        "scores-before-output", "scores overwrite probabilities before their product", _scores_early
    ),
    Rule("product-of-other-half", "a product of the other half's operands", _other_half),
    replaced(
        "product-of-other-slot",
        "a product with V of the slot behind",
        r"(end_block\(\d, \w+, block, )v_slot\)",
        r"\1kv.stage)",
    ),
    replaced(
        "block-unseen-multiplied",
        "a half multiplies a block that it does not see",
        r"if \(!sees\(blocks, block\)\) return;",
        ";",
    ),
    replaced(
        "block-order-of-products",
        "a half begins the same block again",
        r"(begin_block\(\d, \w+, block) - 1\)",
        r"\1)",
    ),
    replaced(
        "q-wait-at-every-block",
        "Q is waited for at every block",
        r"if \(block == blocks\.end - 1\) (?=tensor_wait)",
        "",
    ),
    replaced(
        "q-wait-at-other-block",
        "Q is waited for behind its first use",
        r"if \(block == blocks\.end - 1\) (?=tensor_wait)",
        "if (block == blocks.begin) ",
    ),
    replaced(
        "output-committed-early",
        "the output is handed over before its last block",
        r"if \(block == blocks\.begin (?=&& elect_one)",
        "if (block == blocks.end - 1 ",
    ),
    replaced(
        "second-half-always",
        "the second half's Q advances although it has no rows",
        r"if \(has_rows\(tile, 1\)\) (?=q\[1\])",
        "",
    ),
)
