"""The 32-bit instruction descriptor of `tcgen05.mma`: decoded, with everything that is illegal about it.

PTX ISA 9.7.16.4.2, Instruction descriptor (format for .kind::tf32, .kind::f16, .kind::f8f6f4 and .kind::i8), and
9.7.16.2.1, Matrix Shape (which M and N a kind has).
"""

from __future__ import annotations

from dataclasses import dataclass

_ACCUMULATORS = {0: "f16", 1: "f32", 2: "s32"}

# Kind -> code of the A and B types -> type. The 6- and 4-bit types of f8f6f4 have codes of their own.
_INPUTS = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "i8": {0: "u8", 1: "s8"},
}
_ACCUMULATORS_OF = {
    "f16": ("f32", "f16"),
    "tf32": ("f32",),
    "f8f6f4": ("f32", "f16"),
    "i8": ("s32",),
}

# Elements of K in one instruction, dense: 32 bytes of every type.
K_OF_KIND = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}

_NARROW = frozenset({"e2m3", "e3m2", "e2m1"})
_RESERVED_BITS = (6, 23, 29)


@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """What one `tcgen05.mma` multiplies.

    Attributes:
        kind: `f16`, `tf32`, `f8f6f4` or `i8`.
        m: Rows of D, of both CTAs together in a pair.
        n: Columns of D.
        a_type: Element type of A.
        b_type: Element type of B.
        d_type: `f32`, `f16` or `s32`.
        transpose_a: Whether A is M-major.
        transpose_b: Whether B is N-major.
        negate_a: Whether A enters with the opposite sign.
        negate_b: Whether B does.
        saturate: Whether s32 sums saturate instead of wrapping.
    """

    kind: str
    m: int
    n: int
    a_type: str
    b_type: str
    d_type: str
    transpose_a: bool
    transpose_b: bool
    negate_a: bool
    negate_b: bool
    saturate: bool

    @property
    def k(self) -> int:
        """Elements of K."""
        return K_OF_KIND[self.kind]


@dataclass(frozen=True, slots=True)
class MmaForm:
    """What the opcode and the operands of a `tcgen05.mma` say, which the descriptor has to fit.

    Attributes:
        kind: `f16`, `tf32`, `f8f6f4` or `i8`.
        cta_group: 1 or 2.
        weight_stationary: `.ws`.
        a_in_tensor_memory: Whether A is an address instead of a descriptor.
    """

    kind: str
    cta_group: int
    weight_stationary: bool
    a_in_tensor_memory: bool


def decode_instruction_descriptor(
    value: int, form: MmaForm
) -> tuple[InstructionDescriptor | None, tuple[str, ...]]:
    """The descriptor, and what is wrong with it; None if that leaves nothing to multiply."""
    problems = [f"bit {bit} is reserved and set" for bit in _RESERVED_BITS if value >> bit & 1]
    if value & 0b111:
        problems.append("the sparsity bits 0 to 2 are set, but the instruction is not .sp")
    if value >> 30 and not form.weight_stationary:
        problems.append(
            "bits 30 and 31 (maximum shift of B) are set, but the instruction is not .ws"
        )
    elif value >> 30:
        problems.append("the maximum shift of B (bits 30 and 31) is not simulated")
    d_type = _ACCUMULATORS.get(value >> 4 & 3)
    a_type = _INPUTS[form.kind].get(value >> 7 & 7)
    b_type = _INPUTS[form.kind].get(value >> 10 & 7)
    if d_type not in _ACCUMULATORS_OF[form.kind]:
        problems.append(f"D type {value >> 4 & 3} (bits 4 and 5) is none of kind {form.kind}")
    for matrix, element, shift in (("A", a_type, 7), ("B", b_type, 10)):
        if element is None:
            code = value >> shift & 7
            problems.append(f"{matrix} type {code} (bits {shift} up) is none of kind {form.kind}")
        elif element in _NARROW:
            problems.append(f"{matrix} type {element} is not simulated")
    if problems or d_type is None or a_type is None or b_type is None:
        return None, tuple(problems)
    descriptor = InstructionDescriptor(
        kind=form.kind,
        m=(value >> 24 & 31) * 16,
        n=(value >> 17 & 63) * 8,
        a_type=a_type,
        b_type=b_type,
        d_type=d_type,
        transpose_a=bool(value >> 15 & 1),
        transpose_b=bool(value >> 16 & 1),
        negate_a=bool(value >> 13 & 1),
        negate_b=bool(value >> 14 & 1),
        saturate=bool(value >> 3 & 1),
    )
    problems = _type_problems(descriptor, form) + _shape_problems(descriptor, form)
    return (None if problems else descriptor), tuple(problems)


def _type_problems(descriptor: InstructionDescriptor, form: MmaForm) -> list[str]:
    """Combinations of types, signs and majors that no instruction has (PTX ISA 9.7.16.10.1, table of transposes)."""
    problems = []
    if (
        form.kind == "f16"
        and descriptor.d_type == "f16"
        and "bf16"
        in (
            descriptor.a_type,
            descriptor.b_type,
        )
    ):
        problems.append("D of f16 needs A and B of f16")
    if form.kind == "i8" and (descriptor.negate_a or descriptor.negate_b):
        problems.append("kind i8 cannot negate A or B (bits 13 and 14)")
    if form.kind != "i8" and descriptor.saturate:
        problems.append(f"kind {form.kind} has no saturation (bit 3)")
    if form.a_in_tensor_memory and descriptor.transpose_a:
        problems.append("A in tensor memory cannot be transposed (bit 15)")
    return problems


def _shape_problems(descriptor: InstructionDescriptor, form: MmaForm) -> list[str]:
    """Shapes that the kind does not have (PTX ISA 9.7.16.2.1, and 9.7.16.10.1 for transposed B of 8 bits)."""
    m, n = descriptor.m, descriptor.n
    rows: tuple[int, ...]
    if form.weight_stationary:
        rows, fits = (32, 64, 128), n in {64, 128, 256}
    elif form.cta_group == 1:
        rows, fits = (64, 128), 8 <= n <= 256 and (form.kind != "i8" or n <= 32 or n % 16 == 0)
    else:
        rows, fits = (128, 256), 16 <= n <= 256 and n % (32 if form.kind == "i8" else 16) == 0
    problems = []
    where = ".ws" if form.weight_stationary else f"cta_group::{form.cta_group}"
    if m not in rows:
        problems.append(
            f"M = {m}: kind {form.kind} with {where} has M = {', '.join(map(str, rows))}"
        )
    if not fits:
        problems.append(f"N = {n} is no N of kind {form.kind} with {where}")
    step = 16 * form.cta_group
    if descriptor.transpose_b and form.kind in {"f8f6f4", "i8"} and n % step:
        problems.append(f"N = {n}: an N-major B of 8 bits needs a multiple of {step}")
    return problems


def stricter_shape_problem(descriptor: InstructionDescriptor, form: MmaForm) -> str | None:
    """What CUTLASS refuses beyond the manual: N of an A in tensor memory (M = 128: % 16, pairs: % 32).

    Whether hardware needs it is not known, so only strict checks ask.
    """
    if not form.a_in_tensor_memory or form.weight_stationary:
        return None
    step = 32 if form.cta_group == 2 else 16 if descriptor.m == 128 else 8
    if descriptor.n % step == 0:
        return None
    return f"N = {descriptor.n} with A in tensor memory: CUTLASS asks for a multiple of {step}"
