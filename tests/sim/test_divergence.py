"""Random programs whose lanes part and meet, against an interpreter that runs one thread after the other."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

from mlagen.sim.schedule import Lazy, Pct
from tests.sim.cuda import kinds, run

VARIABLES = ("a", "b", "c")
TABLE = 64
THREADS = 64

State = dict[str, int]


class Break(Exception):  # noqa: N818 (no error)
    pass


class Continue(Exception):  # noqa: N818 (no error)
    pass


@dataclass(frozen=True)
class Statement:
    """C text, and nested statements by role."""

    kind: str
    text: str = ""
    bodies: tuple[tuple[Statement, ...], ...] = ()


def expression(random: Random) -> str:
    """An expression that C and Python read alike, below 2^16."""
    one, other = random.choice(VARIABLES), random.choice((*VARIABLES, str(random.randrange(1, 99))))
    return f"(({one} {random.choice('+*^|&')} {other}) & 0xffff)"


def condition(random: Random) -> str:
    return f"({expression(random)} % {random.randrange(2, 6)}) {random.choice(('==', '!=', '<'))} {random.randrange(3)}"


def body(random: Random, depth: int, *, in_loop: bool) -> tuple[Statement, ...]:
    return tuple(statement(random, depth, in_loop=in_loop) for _ in range(random.randrange(1, 4)))


def statement(random: Random, depth: int, *, in_loop: bool) -> Statement:
    kinds = ["set", "load"]
    if in_loop:
        kinds += ["break", "continue"]
    if depth:
        kinds += ["if", "if", "loop", "loop", "switch"]
    kind = random.choice(kinds)
    match kind:
        case "set":
            return Statement(kind, f"{random.choice(VARIABLES)} = {expression(random)}")
        case "load":
            return Statement(
                kind, f"{random.choice(VARIABLES)} = in[{expression(random)} % {TABLE}]"
            )
        case "break" | "continue":
            return Statement(kind, condition(random))
        case "if":
            arms = tuple(
                body(random, depth - 1, in_loop=in_loop) for _ in range(random.randrange(1, 3))
            )
            return Statement(kind, condition(random), arms)
        case "loop":
            return Statement(kind, expression(random), (body(random, depth - 1, in_loop=True),))
        case _:
            arms = tuple(body(random, depth - 1, in_loop=False) for _ in range(4))
            return Statement(kind, expression(random), arms)


def to_c(one: Statement) -> str:
    inner = ["{ " + " ".join(map(to_c, each)) + " }" for each in one.bodies]
    match one.kind:
        case "set" | "load":
            return one.text + ";"
        case "break" | "continue":
            return f"if ({one.text}) {one.kind};"
        case "if":
            return f"if ({one.text}) " + " else ".join(inner)
        case "loop":
            return f"for (int k = 0, n = {one.text} % 5; k < n; ++k) {inner[0]}"
        case _:
            cases = "".join(f"case {i}: {{ {text} }} break; " for i, text in enumerate(inner))
            return f"switch ({one.text} % 4) {{ {cases} }}"


def execute(statements: tuple[Statement, ...], state: State, table: list[int]) -> None:
    """One thread."""
    names = {"in": table}

    def value(text: str) -> int:
        return int(eval(text.replace("in[", "table["), {"table": names["in"]}, state))  # noqa: S307 (our own text)

    for one in statements:
        match one.kind:
            case "set" | "load":
                target, _, source = one.text.partition(" = ")
                state[target] = value(source)
            case "break":
                if value(one.text):
                    raise Break
            case "continue":
                if value(one.text):
                    raise Continue
            case "if":
                arm = 0 if value(one.text) else 1
                if arm < len(one.bodies):
                    execute(one.bodies[arm], state, table)
            case "loop":
                for _ in range(value(one.text) % 5):
                    try:
                        execute(one.bodies[0], state, table)
                    except Continue:
                        continue
                    except Break:
                        break
            case _:
                execute(one.bodies[value(one.text) % 4], state, table)


KERNEL = """
extern "C" __global__ void kernel(const int* in, int* out) {
  int i = threadIdx.x, a = i, b = in[i], c = 7;
  %s
  b ^= __shfl_xor_sync(0xffffffffu, a, 5);
  if (i %% 11 == c %% 3) { out[3 * i] = a; return; }
  %s
  out[3 * i] = a; out[3 * i + 1] = b; out[3 * i + 2] = c;
}
"""


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    random = Random(seed)  # noqa: S311 (not for secrets)
    first, second = (tuple(statement(random, 3, in_loop=False) for _ in range(6)) for _ in range(2))
    source = KERNEL % (" ".join(map(to_c, first)), " ".join(map(to_c, second)))
    table = [random.randrange(2**16) for _ in range(TABLE)]
    states: list[State] = [{"a": i, "b": table[i], "c": 7} for i in range(THREADS)]
    for state in states:
        execute(first, state, table)
    shuffled = [states[i ^ 5]["a"] for i in range(THREADS)]
    expected = np.full((THREADS, 3), -1, dtype=np.int32)
    for i, state in enumerate(states):
        state["b"] ^= shuffled[i]
        if i % 11 == state["c"] % 3:
            expected[i, 0] = state["a"]
            continue
        execute(second, state, table)
        expected[i] = [state[name] for name in VARIABLES]
    for schedule in (Lazy(), Pct(seed)):
        out = np.full((THREADS, 3), -1, dtype=np.int32)
        result = run(source, np.array(table, dtype=np.int32), out, block=THREADS, schedule=schedule)
        assert kinds(result) == [], source
        np.testing.assert_array_equal(out, expected, err_msg=source)
