"""setmaxnreg: who gives registers away, who gets them, how many."""

from __future__ import annotations

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import at_calls, gone, guarded, replaced

RULES = (
    Rule("registers-kept", "setmaxnreg is missing", gone("release_registers|claim_registers")),
    replaced(
        "registers-too-many",
        "a role asks for more registers than the others leave",
        r"(?<=constexpr int )(kProducerRegisters|kMathRegisters) = (\d+)",
        r"\1 = \2 + 8",
    ),
    replaced(
        "registers-wrong-way",
        "setmaxnreg in the other direction",
        r"setmaxnreg\.(?:(dec)|inc)",
        "setmaxnreg.inc.sync.aligned.u32 %0; setmaxnreg.dec",
    ),
    Rule(
        "registers-by-one-warp",
        "one warp of a warpgroup comes to setmaxnreg",
        at_calls(
            "release_registers|claim_registers",
            lambda source, call: guarded(source, call, "threadIdx.x / 32 % 4 == 0"),
        ),
    ),
)
