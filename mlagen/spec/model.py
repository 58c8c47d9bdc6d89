"""`KernelSpec`: what one kernel shall do; `SpecFile`: a model's geometry and the kernels wanted for it."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self  # Any: JSON values, patterns of any shape

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from mlagen.dtypes import default_output_dtype
from mlagen.spec import mask as masks
from mlagen.spec import score_mod as score_mods
from mlagen.spec.base import (
    OneOrMore,
    Problem,
    SpecModel,
    did_you_mean,
    problem_error,
    raise_problems,
    show,
)
from mlagen.spec.config import FA4Config
from mlagen.spec.expand import Expansion, expand_file
from mlagen.spec.geometry import Geometry, HeadGeometry, RopeScaling
from mlagen.spec.identity import canonical_json, canonical_value, sha256_of
from mlagen.spec.kv_layout import KV, KRope
from mlagen.spec.mask import Mask, NoMask
from mlagen.spec.options import (
    ArchName,
    ConfigOption,
    DTypeOption,
    KRopeOption,
    KVLengthCountsOption,
    KVOption,
    LSEOption,
    MaskOption,
    MaxSeqlenOption,
    OpOption,
    OutputDTypeOption,
    PartitionChoice,
    QFormOption,
    QLayoutOption,
    SchedulerChoice,
    ScoreModOption,
    SinkOption,
)
from mlagen.spec.partition import NoPartition
from mlagen.spec.rules import kernel_problems
from mlagen.spec.scheduler import Scheduler
from mlagen.spec.score_mod import Identity, ScoreMod

__all__ = [
    "FA4Config",
    "Geometry",
    "HeadGeometry",
    "KernelGroup",
    "KernelSpec",
    "RopeScaling",
    "SpecFile",
]


class KernelSpec(SpecModel):
    """One kernel: everything that decides about its instructions and the meaning of its arguments."""

    arch: ArchName = Field(description="Compile target.")
    geometry: HeadGeometry = Field(description="Dimensions of a head.")
    op: OpOption = "prefill"
    dtype: DTypeOption = "bfloat16"
    output_dtype: OutputDTypeOption = None
    q_form: QFormOption = "fused"
    q_layout: QLayoutOption = "ragged"
    mask: MaskOption = NoMask()
    score_mod: ScoreModOption = Identity()
    kv: KVOption = KV()
    k_rope: KRopeOption = KRope()
    kv_length_counts: KVLengthCountsOption = "total"
    sink: SinkOption = False
    lse: LSEOption = False
    max_seqlen: MaxSeqlenOption = "dynamic"
    partition: PartitionChoice = NoPartition()
    scheduler: SchedulerChoice = Scheduler()
    config: ConfigOption = FA4Config()

    @field_validator("geometry", mode="after")
    @classmethod
    def _head_only(cls, value: HeadGeometry) -> HeadGeometry:
        return value.head if isinstance(value, Geometry) else value

    @field_validator("output_dtype", mode="after")
    @classmethod
    def _default_output_dtype(cls, value: str | None, info: ValidationInfo) -> str | None:
        dtype = info.data.get("dtype")
        return value or (None if dtype is None else default_output_dtype(dtype))

    @field_validator("k_rope", mode="after")
    @classmethod
    def _default_row_width(cls, value: KRope, info: ValidationInfo) -> KRope:
        geometry: HeadGeometry | None = info.data.get("geometry")
        if geometry is None or value.layout == "fused" or value.row_width is not None:
            return value
        latent = 0 if value.layout == "ragged" else geometry.kv_lora_rank
        return value.model_copy(update={"row_width": latent + geometry.qk_rope_head_dim})

    @field_validator("mask", mode="after")
    @classmethod
    def _simplify_mask(cls, value: Mask) -> Mask:
        return masks.simplified(value)

    @field_validator("score_mod", mode="after")
    @classmethod
    def _simplify_score_mod(cls, value: ScoreMod) -> ScoreMod:
        return score_mods.simplified(value)

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        raise_problems("kernel", kernel_problems(self))
        return self

    @property
    def canonical(self) -> dict[str, Any]:
        """Every field with its default filled in, as JSON values with sorted keys; `config` as written."""
        return canonical_value(self)

    @property
    def canonical_json(self) -> str:
        """The text whose SHA-256 is `hash`."""
        return canonical_json(self)

    @cached_property
    def hash(self) -> str:
        """The identity: 64 hexadecimal digits."""
        return sha256_of(self)

    @property
    def score_mods(self) -> tuple[ScoreMod, ...]:
        """The modifications that do something, in order; empty for `identity`."""
        return score_mods.in_order(self.score_mod)

    def __hash__(self) -> int:
        """Equal kernels have equal identities."""
        return hash(self.hash)


def _version_one(value: object) -> object:
    if type(value) is not int or value != 1:
        raise problem_error(
            f"this mlagen reads spec version 1, found {show(value)}", "write spec: 1"
        )
    return value


def _option_names() -> list[str]:
    return [name for name in KernelSpec.model_fields if name != "geometry"]


def _names_options(entry: dict[str, Any]) -> dict[str, Any]:
    names = _option_names()
    raise_problems(
        "exclude",
        [
            Problem(
                (name,),
                "unknown option",
                f"{did_you_mean(name, names)}Options: {', '.join(names)}",
                at_key=True,
            )
            for name in entry
            if name not in names
        ],
    )
    if not entry:
        raise problem_error(
            "an empty entry would exclude everything", "name an option, or remove it"
        )
    return entry


Exclusion = Annotated[
    dict[str, Any],
    AfterValidator(_names_options),
    WithJsonSchema(
        {"type": "object", "minProperties": 1, "propertyNames": {"enum": _option_names()}}
    ),
]


class KernelGroup(SpecModel):
    """Kernels that differ in the options which are lists: their cross product, less `exclude`."""

    op: OneOrMore[OpOption]
    dtype: OneOrMore[DTypeOption] = ()
    output_dtype: OneOrMore[OutputDTypeOption] = ()
    q_form: OneOrMore[QFormOption] = ()
    q_layout: OneOrMore[QLayoutOption] = ()
    mask: OneOrMore[MaskOption] = ()
    score_mod: OneOrMore[ScoreModOption] = ()
    kv: OneOrMore[KVOption] = ()
    k_rope: OneOrMore[KRopeOption] = ()
    kv_length_counts: OneOrMore[KVLengthCountsOption] = ()
    sink: OneOrMore[SinkOption] = ()
    lse: OneOrMore[LSEOption] = ()
    max_seqlen: OneOrMore[MaxSeqlenOption] = ()
    partition: OneOrMore[PartitionChoice] = ()
    scheduler: OneOrMore[SchedulerChoice] = ()
    config: OneOrMore[ConfigOption] = ()
    exclude: OneOrMore[Exclusion] = Field(
        (),
        description="Kernels to leave out: each entry names options and (parts of) their values, and takes out the "
        "kernels that match all of them; a list in it matches any of its values.",
    )

    @property
    def options(self) -> dict[str, tuple[object, ...]]:
        """The options that the group writes, each with its values."""
        return {
            name: values
            for name in type(self).model_fields
            if name != "exclude" and (values := getattr(self, name))
        }


class SpecFile(SpecModel):
    """A spec file: a model's geometry and groups of kernels. All its kernels are valid and different."""

    spec: Annotated[Literal[1], BeforeValidator(_version_one)] = Field(
        description="Version of this format: 1."
    )
    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_.-]*$",
        max_length=100,
        description="Name of the spec: lower-case letters, digits, - _ and dots; it names the folder of its kernels.",
    )
    geometry: Geometry = Field(
        description="Dimensions of an attention layer, named as in the model's config.json."
    )
    arch: OneOrMore[ArchName] = Field(description="Compile targets.")
    kernels: tuple[KernelGroup, ...] = Field(
        strict=False, min_length=1, description="Groups of kernels, one or more."
    )

    @model_validator(mode="after")
    def _every_kernel_is_valid(self) -> Self:
        raise_problems("spec", self.expansion.problems)
        return self

    @cached_property
    def expansion(self) -> Expansion:
        """All kernels, and the problems met on the way (none once the file is valid)."""
        return expand_file(self, KernelSpec)

    def expand(self) -> tuple[KernelSpec, ...]:
        """All kernels: by architecture, then group, then the options in the order of `KernelSpec`'s fields."""
        return self.expansion.kernels
