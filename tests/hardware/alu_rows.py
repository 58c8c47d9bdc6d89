"""Every register-only instruction with its operands: one line a family, braces stand for alternatives.

    opcode = result = operand operand ...     T: type at the opcode's end; S: the type before it; W: twice as wide as T

Operands: a type, or `#values` for an immediate that takes each of the values in turn. `p|q` are two results.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

ROUNDINGS = "{,.rn,.rz,.rm,.rp}"
INTEGERS = "{u16,s16,u32,s32,u64,s64}"
ORDERED = "{eq,ne,lt,le,gt,ge}"
UNORDERED = "{equ,neu,ltu,leu,gtu,geu,num,nan}"

ROWS = f"""
add.{INTEGERS} = T = T T
add.sat.s32 = T = T T
sub.{INTEGERS} = T = T T
sub.sat.s32 = T = T T
mul.{{lo,hi}}.{INTEGERS} = T = T T
mul.wide.{{u16,s16,u32,s32}} = W = T T
mad.{{lo,hi}}.{INTEGERS} = T = T T T
mad.hi.sat.s32 = T = T T T
mad.wide.{{u16,s16,u32,s32}} = W = T T W
mul24.{{lo,hi}}.{{u32,s32}} = T = T T
mad24.{{lo,hi}}.{{u32,s32}} = T = T T T
sad.{INTEGERS} = T = T T T
div.{INTEGERS} = T = T T:nonzero
rem.{INTEGERS} = T = T T:nonzero
abs.{{s16,s32,s64}} = T = T
neg.{{s16,s32,s64}} = T = T
min.{INTEGERS} = T = T T
max.{INTEGERS} = T = T T
min.{{u16x2,s16x2}} = T = T T
max.{{u16x2,s16x2}} = T = T T
min.relu.{{s16x2,s32}} = T = T T
max.relu.{{s16x2,s32}} = T = T T
add.{{u16x2,s16x2}} = T = T T
popc.{{b32,b64}} = u32 = T
clz.{{b32,b64}} = u32 = T
brev.{{b32,b64}} = T = T
bfind{{,.shiftamt}}.{{u32,s32,u64,s64}} = u32 = T
fns.b32 = b32 = T u32:below32 s32:below8
bfe.{{u32,s32,u64,s64}} = T = T u32 u32
bfi.{{b32,b64}} = T = T T u32 u32
bmsk.{{clamp,wrap}}.b32 = T = T T
szext.{{clamp,wrap}}.{{u32,s32}} = T = T u32
dp4a.{{u32,s32}}.{{u32,s32}} = s32 = b32 b32 b32
dp2a.{{lo,hi}}.{{u32,s32}}.{{u32,s32}} = s32 = b32 b32 b32
and.{{b16,b32,b64,pred}} = T = T T
or.{{b16,b32,b64,pred}} = T = T T
xor.{{b16,b32,b64,pred}} = T = T T
not.{{b16,b32,b64,pred}} = T = T
cnot.{{b16,b32,b64}} = T = T
lop3.b32 = T = T T T #0,1,23,106,128,150,202,232,254,255
shl.{{b16,b32,b64}} = T = T u32:shift
shr.{{b16,b32,b64,u16,s16,u32,s32,u64,s64}} = T = T u32:shift
shf.{{l,r}}.{{clamp,wrap}}.b32 = T = T T u32:shift
prmt.b32{{,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}} = b32 = b32 b32 b32
selp.{{b16,b32,b64,u16,s16,u32,s32,u64,s64,f32}} = T = T T pred
slct.{{b32,b64,u32,s32,f32}}.s32 = S = S S T
slct{{,.ftz}}.{{b32,f32}}.f32 = S = S S T
set{{.eq,.lt,.ge}}.{{u32,s32}}.{{u32,s32,u16,s64}} = S = T T
set{{.eq,.lt,.ge,.ltu,.nan}}{{,.ftz}}.{{u32,f32}}.f32 = S = T T
setp.{ORDERED}.{{u16,s16,u32,s32,u64,s64}} = pred = T T
setp.{{lo,ls,hi,hs}}.{{u16,u32,u64}} = pred = T T
setp.{{eq,ne}}.{{b16,b32,b64}} = pred = T T
setp.{ORDERED}{{,.ftz}}.f32 = pred = T T
setp.{UNORDERED}{{,.ftz}}.f32 = pred = T T
setp.{{lt,geu}}.f64 = pred = T T
setp.{{lt,eq,gtu,nan}}.{{f16,bf16}} = pred = T T
setp.{{lt,gtu}}.{{f16x2,bf16x2}} = pred|pred = T T
setp.{{lt,ne}}.{{and,or,xor}}.{{s32,u64}} = pred = T T pred
setp.{{gt,leu}}.{{and,or,xor}}.f32 = pred|pred = T T pred
setp.lt.s32 = pred|pred = T T
add{ROUNDINGS}{{,.ftz}}{{,.sat}}.f32 = T = T T
sub{ROUNDINGS}{{,.ftz}}{{,.sat}}.f32 = T = T T
mul{ROUNDINGS}{{,.ftz}}{{,.sat}}.f32 = T = T T
fma{{.rn,.rz,.rm,.rp}}{{,.ftz}}{{,.sat}}.f32 = T = T T T
mad{{.rn,.rz}}{{,.ftz}}.f32 = T = T T T
{{add,sub,mul}}{{,.rn,.rz}}.f64 = T = T T
fma.rn.f64 = T = T T T
div{{.rn,.rz,.rm,.rp}}{{,.ftz}}.f32 = T = T T
div.{{full,approx}}{{,.ftz}}.f32 = T = T T
rcp{{.rn,.rz,.rm,.rp,.approx}}{{,.ftz}}.f32 = T = T
sqrt{{.rn,.rz,.rm,.rp,.approx}}{{,.ftz}}.f32 = T = T
rsqrt.approx{{,.ftz}}.f32 = T = T
{{sin,cos,lg2,ex2}}.approx{{,.ftz}}.f32 = T = T
tanh.approx.f32 = T = T
ex2.approx.{{f16,f16x2}} = T = T
ex2.approx.ftz.{{bf16,bf16x2}} = T = T
tanh.approx.{{f16,f16x2,bf16,bf16x2}} = T = T
abs{{,.ftz}}.f32 = T = T
neg{{,.ftz}}.f32 = T = T
{{abs,neg}}.f64 = T = T
copysign.{{f32,f64}} = T = T T
testp.{{finite,infinite,number,notanumber,normal,subnormal}}.f32 = pred = T
min{{,.ftz}}{{,.NaN}}{{,.xorsign.abs}}.f32 = T = T T
max{{,.ftz}}{{,.NaN}}{{,.xorsign.abs}}.f32 = T = T T
{{min,max}}.f64 = T = T T
{{add,sub,mul}}{{,.rn}}{{,.ftz}}{{,.sat}}.{{f16,f16x2}} = T = T T
{{add,sub,mul}}.rn.{{bf16,bf16x2}} = T = T T
fma.rn{{,.ftz}}{{,.sat,.relu}}.{{f16,f16x2}} = T = T T T
fma.rn{{,.relu}}.{{bf16,bf16x2}} = T = T T T
{{neg,abs}}{{,.ftz}}.{{f16,f16x2}} = T = T
{{neg,abs}}.{{bf16,bf16x2}} = T = T
{{min,max}}{{,.ftz}}{{,.NaN}}.{{f16,f16x2}} = T = T T
{{min,max}}{{,.NaN}}{{,.xorsign.abs}}.{{bf16,bf16x2}} = T = T T
cvt.{{u8,s8,u16,s16,u32,s32,u64,s64}}.{{u16,s16,u32,s32,u64,s64}} = S = T
cvt.sat.{{u8,s8}}.{{u16,s16,u32,s32,u64,s64}} = S = T
cvt.sat.u16.{{s16,u32,s32,u64,s64}} = S = T
cvt.sat.s16.{{u16,u32,s32,u64,s64}} = S = T
cvt.sat.u32.{{s16,s32,u64,s64}} = S = T
cvt.sat.s32.{{u32,u64,s64}} = S = T
cvt.sat.u64.{{s16,s32,s64}} = S = T
cvt.sat.s64.u64 = S = T
cvt.{{u16,s16,u32,s32,u64,s64}}.{{u8,s8}} = S = T
cvt.{{rn,rz,rm,rp}}.f32.{{u16,s16,u32,s32,u64,s64}} = S = T
cvt.rn.f32.{{u8,s8}} = S = T
cvt.rn.{{f16,bf16}}.{{u16,s16,u32,s32,u64,s64}} = S = T
cvt.rn.f16.{{u8,s8}} = S = T
cvt.rn.f64.{{u32,s32,u64,s64}} = S = T
cvt.{{rni,rzi,rmi,rpi}}{{,.ftz}}{{,.sat}}.{{u8,s8,u16,s16,u32,s32,u64,s64}}.f32 = S = T
cvt.{{rni,rzi}}.{{u16,s16,u32,s32,u64,s64}}.{{f16,bf16}} = S = T
cvt.{{rni,rzi}}.{{u32,s32,u64,s64}}.f64 = S = T
cvt.{{rni,rzi,rmi,rpi}}{{,.ftz}}{{,.sat}}.f32.f32 = S = T
cvt{{,.ftz}}{{,.sat}}.f32.f32 = S = T
cvt{{,.ftz}}{{,.sat}}.f32.f16 = S = T
cvt{{,.ftz}}.f32.bf16 = S = T
cvt.f64.f32 = S = T
cvt.{{rn,rz,rm,rp}}{{,.ftz}}.f32.f64 = S = T
cvt.{{rn,rz,rm,rp}}{{,.ftz}}{{,.sat}}.f16.f32 = S = T
cvt.{{rn,rz,rm,rp}}.bf16.f32 = S = T
cvt.{{rn,rz}}.relu.{{f16,bf16}}.f32 = S = T
cvt.{{rn,rz}}{{,.relu}}.{{f16x2,bf16x2}}.f32 = S = T T
cvt.rna{{,.satfinite}}.tf32.f32 = b32 = T
cvt.{{rn,rz}}{{,.relu}}.tf32.f32 = b32 = T
cvt.rn.satfinite{{,.relu}}.{{e4m3x2,e5m2x2}}.f32 = S = T T
cvt.rn.satfinite{{,.relu}}.{{e4m3x2,e5m2x2}}.f16x2 = S = T
cvt.rn{{,.relu}}.f16x2.{{e4m3x2,e5m2x2}} = S = T
cvt.pack.sat.{{u16,s16}}.s32 = b32 = T T
cvt.pack.sat.{{u8,s8,u4,s4}}.s32.b32 = b32 = s32 s32 b32
mov.{{b16,u16,b32,u32,f32,b64,u64,pred}} = T = T
"""

_BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Row:
    """An instruction.

    Attributes:
        opcode: In full.
        results: Types.
        operands: Types, with a range after a colon if not all values are defined.
        immediates: Values of a last, immediate operand, taken by turns; empty if it has none.
    """

    opcode: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    immediates: tuple[int, ...] = ()

    @property
    def is_approximate(self) -> bool:
        """Whether PTX leaves its last bits open."""
        return bool({"approx", "full"} & set(self.opcode.split(".")))


def expand(pattern: str) -> list[str]:
    """All texts that a pattern with braces stands for."""
    pieces = _BRACES.split(pattern)
    choices = [piece.split(",") if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ["".join(parts) for parts in itertools.product(*choices)]


def _wide(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}"


def rows() -> list[Row]:
    """The table, expanded."""
    found = []
    for line in ROWS.strip().splitlines():
        pattern, results, operands = (part.strip() for part in line.split(" = "))
        for opcode in expand(pattern):
            *_, before, last = opcode.split(".")
            names = {"T": last, "S": before, "W": ""}
            if last[1:].isdigit():
                names["W"] = _wide(last)
            words = [
                names.get(kind, kind) + colon + rest
                for kind, colon, rest in (word.partition(":") for word in operands.split())
            ]
            immediates = tuple(int(v) for w in words if w[0] == "#" for v in w[1:].split(","))
            found.append(
                Row(
                    opcode,
                    tuple(names.get(name, name) for name in results.split("|")),
                    tuple(word for word in words if word[0] != "#"),
                    immediates,
                )
            )
    return found
