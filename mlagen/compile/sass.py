"""The lint of compiled kernels: what the SASS must show, read with nvdisasm.

NVRTC compiles a kernel that spills, or whose tensor-core instructions run one by one, without a
warning that fails anything. The numbers expected come from the plan, as values.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlagen.compile.finding import Finding
from mlagen.errors import CompileError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlagen.sass_facts import SassFacts, SassLoop

# Part of what a cached verdict is worth: count up when a rule is added or changed.
LINT_VERSION = 3

_TIMEOUT_SECONDS = 120
_EVIDENCE_LINES = 6
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<offset>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?"
    r"(?P<name>[A-Z][\w.]*)(?P<rest>[^;]*);"
)
_LABEL = re.compile(r"^(?P<label>\.L_x_\w+):")
_TARGET = re.compile(r"`\((?P<label>\.L_x_\w+)\)")
_PRODUCTS = frozenset({"HGMMA", "QGMMA"})  # wgmma of 16 and of 8 bits
_REGISTER = re.compile(r"\bR(\d+)\b")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One SASS instruction.

    Attributes:
        offset: Bytes from the start of the kernel.
        name: Mnemonic with its modifiers, such as `HGMMA.64x128x16.F32.BF16`.
        text: The whole instruction, predicate and operands included.
        target: Label it branches to, if it does.
    """

    offset: int
    name: str
    text: str
    target: str | None = None

    @property
    def opcode(self) -> str:
        """The mnemonic without modifiers."""
        return self.name.partition(".")[0]

    def __str__(self) -> str:
        """Return the line as evidence shows it."""
        return f"/*{self.offset:04x}*/ {self.text}"


@dataclass(frozen=True, slots=True)
class Loop:
    """The instructions from the target of a backward branch to the branch."""

    body: tuple[Instruction, ...]

    def count(self, name: str) -> int:
        """Return how many instructions of the loop have that name, whatever modifiers follow."""
        return sum(_has_name(instruction, name) for instruction in self.body)

    def describe(self, *names: str) -> str:
        """Return where the loop is, and how many instructions of these names it has."""
        first, last = self.body[0].offset, self.body[-1].offset
        counts = ", ".join(f"{self.count(name)} {name}" for name in (*names, "MUFU.EX2"))
        return f"loop {first:04x} to {last:04x}: {counts}"


@dataclass(frozen=True, slots=True)
class Sass:
    """A disassembled kernel: its instructions in order, and the index of each label."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    @property
    def highest_register(self) -> int:
        """The highest general register named: what a thread needs, whatever its launch bound."""
        return max(
            (int(n) for i in self.instructions for n in _REGISTER.findall(i.text)), default=0
        )

    def loops(self) -> Iterator[Loop]:
        """Yield the body of every backward branch, in the order of the branches."""
        for at, instruction in enumerate(self.instructions):
            start = self.labels.get(instruction.target or "", at + 1)
            if start <= at:
                yield Loop(self.instructions[start : at + 1])


def find_nvdisasm() -> Path | None:
    """Return the nvdisasm of a wheel or toolkit, None if there is none."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility  # absent on macOS
    except ImportError:
        return None
    found = find_nvidia_binary_utility("nvdisasm")
    return Path(found) if found else None


def disassemble(cubin: bytes) -> Sass:
    """Return the SASS of the only kernel in `cubin`.

    Raises:
        MissingDependencyError: There is no nvdisasm.
        CompileError: nvdisasm cannot read the cubin.
    """
    tool = find_nvdisasm()
    if tool is None:
        raise MissingDependencyError(
            "nvdisasm: not found, so the SASS of kernels cannot be checked\n"
            "  pip install nvidia-cuda-nvdisasm"
        )
    try:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            result = subprocess.run(  # noqa: S603  # our own tool on our own file
                [tool, "--print-code", file.name],
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_SECONDS,
                start_new_session=True,  # Ctrl-C stops the build, not the check in hand
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependencyError(
            f"nvdisasm: {tool} cannot be run on a temporary file ({error})\n"
            "  make room in the folder for temporary files, or set TMPDIR to another"
        ) from error
    if result.returncode:
        raise CompileError(
            f"nvdisasm: cannot read the cubin ({tool})\n  {result.stderr.strip()}\n"
            "  it must not be older than NVRTC: pip install --upgrade nvidia-cuda-nvdisasm"
        )
    return parse_sass(result.stdout)


def parse_sass(text: str) -> Sass:
    """Return the instructions and labels in the output of `nvdisasm --print-code`."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if found := _LABEL.match(line):
            labels[found["label"]] = len(instructions)
        elif found := _INSTRUCTION.match(line):
            target = _TARGET.search(found["rest"])
            guard = f"@{found['guard']} " if found["guard"] else ""
            instructions.append(
                Instruction(
                    int(found["offset"], 16),
                    found["name"],
                    " ".join(f"{guard}{found['name']}{found['rest']}".split()),
                    target["label"] if target else None,
                )
            )
    return Sass(tuple(instructions), labels)


def loops_like(sass: Sass, wanted: SassLoop) -> list[Loop]:
    """Return the loops that have exactly the instructions of `wanted`, of those that it names."""
    return [
        loop
        for loop in sass.loops()
        if all(loop.count(name) == count for name, count in wanted.counts)
    ]


def lint_sass(sass: Sass, expected: SassFacts) -> list[Finding]:
    """Return what is wrong with a kernel's SASS, nothing if all is as the plan means it."""
    findings = [_check_local_memory(sass), *_check_groups(sass)]
    findings += [_check_loop(sass, loop) for loop in expected.loops]
    if expected.registers:
        findings.append(_check_registers(sass, expected.registers))
    return [finding for finding in findings if finding is not None]


def _check_local_memory(sass: Sass) -> Finding | None:
    found = [i for i in sass.instructions if i.opcode in {"LDL", "STL"}]
    if not found:
        return None
    message = f"{len(found)} LDL and STL, expected none: registers or a local array are in memory"
    return Finding("local memory", message, _evidence(found))


def _check_loop(sass: Sass, expected: SassLoop) -> Finding | None:
    """Check that some loop has exactly what one round needs: nothing twice, nothing left out."""
    if loops_like(sass, expected):
        return None
    names = [name for name, _ in expected.counts]
    candidates = [loop for loop in sass.loops() if all(map(loop.count, names))]
    totals = ", ".join(
        f"{sum(_has_name(one, name) for one in sass.instructions)} {name}" for name in names
    )
    return Finding(
        "loop count",
        f"no loop is that of {expected} ({totals} in the kernel)",
        tuple(loop.describe(*names) for loop in candidates[:_EVIDENCE_LINES]),
    )


def _check_registers(sass: Sass, expected: tuple[int, ...]) -> Finding | None:
    """Check that roles ask for the registers of the plan, and that nobody names more than the largest has."""
    changes = [i for i in sass.instructions if i.opcode == "USETMAXREG"]
    asked = sorted(int(change.text.split()[-1].rstrip(";"), 16) for change in changes)
    if asked == sorted(expected) and sass.highest_register < max(expected):
        return None
    message = f"setmaxnreg {asked}, R{sass.highest_register} the highest: the plan has {expected}"
    return Finding("registers", message, _evidence(changes))


def _check_groups(sass: Sass) -> Iterator[Finding]:
    """Check each wgmma group, from its first product to the one that commits it (`gsb0`).

    Inside, WARPGROUP.ARRIVE shows that ptxas cut the group into pieces, and R2UR that an operand's
    address was not known to be uniform: the tensor cores wait for it.
    """
    arrivals: list[Instruction] = []  # since the last commit or branch
    inside: list[Instruction] = []  # from the open group's first HGMMA on
    blocks = set(sass.labels.values())
    for index, instruction in enumerate(sass.instructions):
        if index in blocks and not inside:
            arrivals = []
        if instruction.name == "WARPGROUP.ARRIVE":
            arrivals.append(instruction)
        is_product = instruction.opcode in _PRODUCTS
        if is_product or inside:
            inside.append(instruction)
        if not is_product or "gsb0" not in instruction.text:
            continue
        if len(arrivals) > 1:
            message = f"{len(arrivals)} WARPGROUP.ARRIVE for one wgmma group, expected one"
            yield Finding("serialised wgmma", message, _evidence([*arrivals, instruction]))
        moved = [i for i in inside if i.opcode == "R2UR"]
        if moved:
            message = f"{len(moved)} R2UR between the products of one group, expected none"
            yield Finding("R2UR", message, _evidence(moved))
        arrivals, inside = [], []


def _has_name(instruction: Instruction, name: str) -> bool:
    return instruction.name == name or instruction.name.startswith(f"{name}.")


def _evidence(instructions: list[Instruction]) -> tuple[str, ...]:
    shown = [str(i) for i in instructions[:_EVIDENCE_LINES]]
    hidden = len(instructions) - len(shown)
    return (*shown, f"and {hidden} more") if hidden else tuple(shown)
