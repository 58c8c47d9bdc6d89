"""The text that rules edit: calls, functions, moves."""

from __future__ import annotations

from tests.mutation.source import Edit, Source

TEXT = """\
struct Role {
  __device__ __forceinline__ void run() {
    wait(shared.full[k.stage], f(a, b) ^ 1);  // not wait(x)
    if (elect_one()) release<2>(full);
  }
};

__device__ __forceinline__ void wait(int barrier, int parity) {
  asm volatile("try [%0];" ::"r"(barrier));
}
"""


def test_calls_are_found_with_their_arguments_and_without_comments_and_definitions() -> None:
    source = Source(TEXT)
    (call,) = source.calls("wait")
    assert source.line(call.start) == 3
    assert source.argument(call, 0) == "shared.full[k.stage]"
    assert source.argument(call, 1) == "f(a, b) ^ 1"
    assert source.text[slice(*source.statement(call))] == "wait(shared.full[k.stage], f(a, b) ^ 1);"


def test_template_arguments_belong_to_a_call() -> None:
    source = Source(TEXT)
    (call,) = source.calls("release")
    assert source.text[call.start : call.end] == "release<2>(full)"


def test_methods_carry_the_name_of_their_struct() -> None:
    source = Source(TEXT)
    assert source.function(TEXT.index("wait(shared")) == "Role.run"
    assert source.function(TEXT.index("asm")) == "wait"
    assert source.functions("wa.*") == ["wait"]
    assert TEXT[slice(*source.body("wait"))].startswith("__device__")


def test_edits_apply_in_any_order() -> None:
    source = Source("0123456789")
    assert source.apply([Edit(7, 8, "b"), Edit(2, 4, "a")]) == "01a456b89"


def test_a_move_keeps_the_numbers_of_lines() -> None:
    source = Source(TEXT)
    (call,) = source.calls("wait")
    moved = source.apply(source.moved(*source.statement(call), TEXT.index("if (elect")))
    assert moved.splitlines()[2].strip() == ";  // not wait(x)"
    assert (
        moved.splitlines()[3]
        .strip()
        .startswith("wait(shared.full[k.stage], f(a, b) ^ 1); if (elect")
    )
