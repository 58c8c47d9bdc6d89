"""Errors of a spec file: place, evidence, advice, all at once, in file order."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlagen.errors import SpecError
from mlagen.spec.yaml import load_spec_file, parse_spec, spec_from_dict
from tests.spec.writing import HEAD, error_of, errors_of, spec_dict

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "  - op: prefill\n"


def test_an_error_shows_place_line_carets_and_advice() -> None:
    assert error_of(GROUP + "    mask: {kind: casual}\n") == (
        dedent("""\
        test.yaml:7:18: kernels[0].mask.kind: 'casual' is not a mask
           7 |     mask: {kind: casual}
             |                  ^^^^^^
          did you mean 'causal'? Masks: none, causal, sliding_window, chunked, padding, prefix_lm, document, tree, """)
        + "block_sparse, {all: [...]}, {any: [...]}, {expr: ...}"
    )


# Each: a line of a group, the text that the carets underline, the path, the message, the advice.
LINES = [
    ("mask: casual", "casual", "mask", "'casual' is not a mask", "did you mean 'causal'?"),
    (
        "mask: [causal, casual]",
        "casual",
        "mask[1]",
        "'casual' is not a mask",
        "did you mean 'causal'?",
    ),
    ("mask: 3", "3", "mask", "3 is not a mask", "Masks: none"),
    (f"mask: {'x' * 90}", "x" * 90, "mask", f"'{'x' * 57}...' is not a mask", "Masks: none"),
    ("mask:", "mask", "mask", "null is not a mask", "Masks: none"),
    ("mask: {size: 3}", "{size: 3}", "mask", "names no mask", "add kind"),
    ("mask: {kind: 7}", "7", "mask.kind", "'7' is not a mask", "Masks: "),
    ("mask: chunked", "chunked", "mask.size", "missing", "add size: Keys of a chunk"),
    (
        "mask: {kind: chunked, sise: 64, size: 3}",
        "sise",
        "mask.sise",
        "unknown field",
        "did you mean 'size'?",
    ),
    (
        "mask: {all: [tree, casual]}",
        "casual",
        "mask.all[1]",
        "'casual' is not a mask",
        "did you mean",
    ),
    ("mask: {any: []}", "[]", "mask.any", "empty list", "at least one"),
    ("mask: {all: tree}", "tree", "mask.all", "'tree' is not a list", "write a list"),
    (
        "mask: [{all: [{any: [{kind: chunked, size: 0}]}]}]",
        "0",
        "mask[0].all[0].any[0].size",
        "0 is less than 1",
        "at least 1",
    ),
    ("mask: {expr: ''}", "''", "mask.expr", "empty text", "Expression"),
    (
        "mask: {expr: k, params: {w: int33}}",
        "int33",
        "mask.params.w.dtype",
        "not one of int32, float32",
        "int32",
    ),
    (
        "score_mod: {kind: softcap, cap: '30'}",
        "'30'",
        "score_mod.cap",
        "'30' is not a number",
        "quotes",
    ),
    ("score_mod: [[softcap, alibi]]", "softcap", "score_mod[0][0].cap", "missing", "add cap"),
    (
        "score_mod: [[alibi, albi]]",
        "albi",
        "score_mod[0][1]",
        "'albi' is not a score mod",
        "'alibi'",
    ),
    ("kv: paged", "paged", "kv.page_size", "missing", "page_size: 64"),
    ("kv: {layout: ragged, page_size: 64}", "64", "kv.page_size", "no meaning", "layout: paged"),
    ("kv: [ragged, {layout: packed}]", "packed", "kv[1].layout", "not one of", "ragged"),
    (
        "k_rope: {layout: paged, page_size: 64.0}",
        "64.0",
        "k_rope.page_size",
        "not a whole number",
        "write 64:",
    ),
    ("k_rope: 64", "64", "k_rope", "64 is not a mapping", "write a mapping"),
    ("lse: yes", "yes", "lse", "'yes' is not true or false", "write true:"),
    ("lse: no", "no", "lse", "'no' is not true or false", "write false:"),
    ("sink: 1", "1", "sink", "1 is not true or false", "true or false"),
    ("lse: []", "[]", "lse", "empty list", "leave the field out"),
    ("max_seqlen: 4294967297", "4294967297", "max_seqlen", "1 to 2147483647", "dynamic"),
    ("max_seqlen: 0", "0", "max_seqlen", "found 0", "dynamic"),
    (
        "partition: {kind: split, splits: 3}",
        "split",
        "partition.kind",
        "'split' is not a partition",
        "split_kv",
    ),
    (
        "scheduler: {kind: queued, order: longest}",
        "longest",
        "scheduler.order",
        "not one of",
        "'longest_first'",
    ),
    ("config: {tile_n: 72}", "72", "config.tile_n", "72 is not a multiple of 16", "BN"),
    ("config: {BN: 64}", "BN", "config.BN", "unknown field", "tile_n"),
    ("config: 128", "128", "config", "128 is not a mapping", "mapping"),
    ("exclude: {msk: causal}", "msk", "exclude.msk", "unknown option", "did you mean 'mask'?"),
    (
        "exclude: [{mask: tree}]",
        "tree",
        "exclude[0].mask",
        "no kernel of this group has mask tree",
        "none",
    ),
    ("page_size: 64", "page_size", "page_size", "unknown field", "Fields here: "),
    ("lsee: true", "lsee", "lsee", "unknown field", "did you mean 'lse'?"),
    ("op: decode", "op", "op", "written twice, first in line 6", "remove one"),
    (
        "lse: !!python/name:os.system true",
        "!!python/name:os.system true",
        "lse",
        "has the tag",
        "remove it",
    ),
    ("1: true", "1", "", "a field's name is text", "field names"),
    ("<<: {lse: true}", "<<", "", "merge keys are YAML 1.1", "write the fields out"),
]


@pytest.mark.parametrize(
    ("line", "marked", "path", "message", "advice"), LINES, ids=[line[0] for line in LINES]
)
def test_error_of_a_line(line: str, marked: str, path: str, message: str, advice: str) -> None:
    head, evidence, carets, last = error_of(
        f"{GROUP}    {line}\n    dtype: bfloat16\n"
    ).splitlines()
    place = re.match(r"test\.yaml:7:(\d+): (?:kernels\[0\]\.?)?", head)
    assert place is not None, head
    rest = head[place.end() :]
    assert rest.startswith(f"{path}: " if path else ""), head
    assert message in rest
    assert advice in last
    assert evidence == f"   7 |     {line}"
    assert carets.index("^") - len("     | ") == int(place[1]) - 1
    if marked:
        start, length = carets.index("^"), carets.count("^")
        assert evidence[start : start + length] == marked


def test_all_errors_come_at_once_and_in_file_order() -> None:
    errors = errors_of(
        dedent("""\
          - mask: casual
            lse: yes
          - op: prefill
            op: prefill
            kv: {layout: paged}
            config: {tile_n: 7, tile_q: 1}
        """),
        HEAD.replace("name: test", "name: Test").replace("arch: sm_90a", "arch: [sm_90]"),
    )
    places = [re.match(r"test\.yaml:(\d+):(\d+): (\S+): ", error) for error in errors]
    assert all(places)
    assert [(int(place[1]), place[3]) for place in places if place] == [
        (2, "name"),
        (4, "arch[0]"),
        (6, "kernels[0].op"),
        (6, "kernels[0].mask"),
        (7, "kernels[0].lse"),
        (9, "kernels[1].op"),
        (10, "kernels[1].kv.page_size"),
        (11, "kernels[1].config.tile_n"),
        (11, "kernels[1].config.tile_q"),
    ]
    columns = [(int(place[1]), int(place[2])) for place in places if place]
    assert columns == sorted(columns)


@pytest.mark.parametrize(
    ("old", "new", "place", "message", "advice"),
    [
        ("spec: 1", "spec: 2", "1:7: spec: ", "reads spec version 1, found 2", "write spec: 1"),
        ("spec: 1", "spec: true", "1:7: spec: ", "found true", "write spec: 1"),
        ("spec: 1\n", "", "1:1: spec: ", "missing", "add spec"),
        ("name: test", "name: A B", "2:7: name: ", "other characters", "rename"),
        ("name: test", "name: ../x", "2:7: name: ", "other characters", "rename"),
        ("name: test", "name: 7", "2:7: name: ", "7 is not text", "quotes"),
        ("[16, 8]", "[16, 16]", "3:28: geometry.num_heads[1]: ", "same as entry 0", "remove"),
        ("[16, 8]", "[]", "3:23: geometry.num_heads: ", "empty list", "value"),
        ("[16, 8]", "0", "3:23: geometry.num_heads: ", "0 is less than 1", "at least 1"),
        (
            "v_head_dim: 128, ",
            "",
            "3:1: geometry.v_head_dim: ",
            "missing",
            "add v_head_dim: Columns of v",
        ),
        ("kv_lora_rank", "kv_rank", "3:1: geometry.kv_lora_rank: ", "missing", "add kv_lora_rank"),
        ("arch: sm_90a", "arch: sm_80", "4:7: arch: ", "'sm_80' is not one of", "sm_90a"),
        ("arch: sm_90a", "arch: []", "4:7: arch: ", "empty list", "value"),
        (
            "arch: sm_90a",
            "arch: sm_90a\nextra: 1",
            "5:1: extra: ",
            "unknown field",
            "Fields here: ",
        ),
        ("spec: 1", "%YAML 1.1\n---\nspec: 1", "1:1: ", "YAML 1.2", "remove"),
    ],
)
def test_errors_outside_groups(old: str, new: str, place: str, message: str, advice: str) -> None:
    assert old in HEAD
    error = errors_of(GROUP, HEAD.replace(old, new, 1))[0].splitlines()
    assert error[0].startswith(f"test.yaml:{place}")
    assert message in error[0]
    assert advice in error[-1]


@pytest.mark.parametrize(
    ("text", "place", "message", "advice"),
    [
        ("", "1:1", "spec: missing", "add spec"),
        ("# only a comment\n", "1:1", "spec: missing", "add spec"),
        ("- a\n- b\n", "1:1", "a list is not a mapping", "write a mapping"),
        ("just text", "1:1", "'just text' is not a mapping", "write a mapping"),
        ("a: [1\n", "2:1", "not YAML", "brackets"),
        ("a: b: c\n", "1:5", "not YAML: mapping values are not allowed", "indentation"),
        ("a:\n\tb: 1\n", "2:1", "not YAML", "indent with spaces"),
        ("a: 'x\n", "2:1", "not YAML", "quotes"),
        ("a: *nobody\n", "1:4", "not YAML: found undefined alias", "check"),
        ("a: 1\n---\nb: 2\n", "2:1", "not YAML", "split it at ---"),
        ("a: \x01\n", "1:4", "no text file holds", "remove"),
        ("a: &x [*x]\n", "1:4", "a[0]: contains itself", "alias"),
        ("[" * 1000, "1:1", "nested too deeply", "levels"),
        ("a" * 1_000_001, "1:1", "longer than 1,000,000 characters", "split"),
        (f"spec: {'9' * 5000}\n", "1:7", "is no number", "shorter"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_text_that_is_no_spec(text: str, place: str, message: str, advice: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "test.yaml")
    errors = [one.splitlines() for one in str(caught.value).split("\n\n")]
    (error,) = [one for one in errors if message in one[0]]
    assert error[0].startswith(f"test.yaml:{place}: ")
    assert advice in error[-1]


def test_aliases_cannot_blow_up() -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 10))
    with pytest.raises(SpecError, match="more than 100,000 values"):
        parse_spec("l0: &l0 [x, x, x]\n" + levels, "test.yaml")


def test_aliases_are_understood() -> None:
    text = "  - {op: prefill, mask: &window {kind: sliding_window, left: 7, right: 0}}\n"
    text += "  - {op: prefill, lse: true, mask: *window}\n"
    first, second = parse_spec(HEAD + text).expand()
    assert first.mask == second.mask


def test_long_lines_are_shown_around_the_error() -> None:
    many = ", ".join(f"{{kind: chunked, size: {size}}}" for size in range(1, 40))
    _, evidence, carets, _ = error_of(f"{GROUP}    mask: [{many}, casual, causal]\n").splitlines()
    assert len(evidence) < 160
    start = carets.index("^")
    assert evidence[start : start + carets.count("^")] == "casual"


def test_carets_stand_right_behind_tabs() -> None:
    line = '    mask: [{expr: "k\t<= q"}, casual]'
    _, evidence, carets, _ = error_of(f"{GROUP}{line}\n").splitlines()
    assert evidence.index("casual") == carets.index("^")
    assert carets[: carets.index("^")].count("\t") == 1


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_numbers_hold_for_every_line_ending(ending: str) -> None:
    with pytest.raises(SpecError, match=r"^test\.yaml:7:11: "):
        parse_spec((HEAD + GROUP + "    mask: casual\n").replace("\n", ending), "test.yaml")


def test_a_byte_order_mark_is_no_error() -> None:
    assert len(parse_spec("\ufeff" + HEAD + GROUP).expand()) == 1


def test_errors_of_a_dict_name_the_path() -> None:
    with pytest.raises(SpecError) as caught:
        spec_from_dict(spec_dict({"mask": ["causal", "casual"]}, name="A"))
    first, second = str(caught.value).split("\n\n")
    assert first.startswith("spec: name: 'A' has other characters")
    assert second.startswith(
        "spec: kernels[0].mask[1]: 'casual' is not a mask\n  did you mean 'causal'?"
    )


def test_errors_between_options_point_into_the_lists() -> None:
    text = f"{GROUP}    kv: [ragged, dense]\n    k_rope: [fused, ragged]\n"
    error = error_of(text)
    assert error.startswith("test.yaml:8:21: kernels[0].k_rope[1]: layout ragged needs the offsets")


def test_kernels_are_not_counted_when_their_entries_are_wrong() -> None:
    assert [
        error for error in errors_of("  - op: prefill\n    lse: 3\n") if "empty list" in error
    ] == []


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "deepseek.yaml").write_text(HEAD + GROUP)
    assert load_spec_file(tmp_path / "deepseek.yaml").name == "test"
    with pytest.raises(
        SpecError, match=r"deepsek\.yaml: no such file\n  did you mean .*deepseek\.yaml\?"
    ):
        load_spec_file(tmp_path / "deepsek.yaml")
    with pytest.raises(SpecError, match="no such file\n  give the path"):
        load_spec_file(tmp_path / "nowhere" / "x.yaml")


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8 text"):
        load_spec_file(path)
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec_file(tmp_path)


VALID = (
    HEAD
    + dedent("""\
  - op: prefill
    mask: [causal, {kind: sliding_window, left: 3, right: 0}, {all: [causal, tree]}]
    score_mod: [identity, [alibi, {kind: softcap, cap: 30}]]
    k_rope: [ragged, {layout: paged, page_size: 64}]
    config: {tile_n: 128}
    exclude: [{mask: causal, k_rope: paged}]
""")
    .replace("\n", "\n  ")
    .rstrip()
    + "\n"
)

SCRAPS = st.sampled_from(
    [
        *"{}[]:,-&*!|>%@#?'\"\n\t 0",
        "null",
        "true",
        "1e3",
        "kind",
        "mask",
        "[",
        "...",
        "---",
        "*x",
        "&x ",
        "<<: ",
        "\u2028",
    ]
)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_text_is_a_spec_or_a_spec_error(data: st.DataObject) -> None:
    text = VALID
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(SCRAPS) + text[stop:]
    try:
        parse_spec(text, "test.yaml")
    except SpecError as error:
        for one in str(error).split("\n\n"):
            place = re.match(r"test\.yaml:(\d+):(\d+): ", one)
            assert place is not None, one
            lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", text)
            assert 1 <= int(place[1]) <= len(lines)
            assert 1 <= int(place[2]) <= len(lines[int(place[1]) - 1]) + 1


@pytest.mark.parametrize("line_end", ["\x85", "\u2028", "\u2029"])
def test_rare_line_ends_leave_columns_inside_their_line(line_end: str) -> None:
    with pytest.raises(SpecError, match=r"^test\.yaml:2:[1-3]: not YAML"):
        parse_spec(f"{line_end} 1\nname: test\n", "test.yaml")


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["causal", "ragged"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "of", "all", "expr", "layout", "size", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(
    option=st.sampled_from(
        ["mask", "score_mod", "kv", "k_rope", "config", "exclude", "lse", "dtype"]
    ),
    value=JSON_LIKE,
)
@settings(max_examples=100, deadline=None)
def test_any_value_of_an_option_is_a_spec_or_a_spec_error(option: str, value: object) -> None:
    message = _error_or_none(spec_dict({option: value}))
    assert message is None or message.startswith(f"spec: kernels[0].{option}")


def _error_or_none(values: dict[str, object]) -> str | None:
    try:
        spec_from_dict(values)
    except SpecError as error:
        return str(error)
    return None
