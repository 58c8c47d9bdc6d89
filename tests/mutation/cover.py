"""Which blocks of the templates a kernel's text comes from, and the fewest kernels that together use all of them.

A block is the body of an `{% if %}`, `{% elif %}`, `{% else %}` or `{% for %}`, or a side of an inline `x if y`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import nodes
from jinja2.environment import Environment

from mlagen.plan import plan_kernel
from mlagen.render.environment import environment
from mlagen.render.kernel import prefill_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import KernelSpec

_MARK = "mark_block"


class _MarkingEnvironment(Environment):
    """Compiles templates in which every block says that it was used."""

    def _generate(  # Jinja's hook for another way from tree to code
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        for node in list(source.find_all((nodes.If, nodes.For, nodes.CondExpr))):
            place = f"{name}:{node.lineno}"
            if isinstance(node, nodes.If):
                node.body.insert(0, nodes.Output([_mark(f"{place} if")]))
                if node.else_:
                    node.else_.insert(0, nodes.Output([_mark(f"{place} else")]))
            elif isinstance(node, nodes.For):
                node.body.insert(0, nodes.Output([_mark(f"{place} for")]))
            elif isinstance(node, nodes.CondExpr):
                node.expr1 = nodes.Concat([_mark(f"{place} inline if"), node.expr1])
                if node.expr2 is not None:
                    node.expr2 = nodes.Concat([_mark(f"{place} inline else"), node.expr2])
        return super()._generate(source, name, filename, defer_init)


def _mark(block: str) -> nodes.Expr:
    return nodes.Call(nodes.Name(_MARK, "load"), [nodes.Const(block)], [], None, None)


def template_blocks(plans: Iterable[KernelPlan]) -> dict[str, frozenset[str]]:
    """The blocks that each kernel uses, by its name: `device/mask.cuh.j2:8 if`, with the line of the tag."""
    usual = environment()
    marking = _MarkingEnvironment(
        loader=usual.loader,
        undefined=usual.undefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    used: set[str] = set()

    def mark(block: str) -> str:
        used.add(block)
        return ""

    marking.globals[_MARK] = mark
    found = {}
    for plan in plans:
        used.clear()
        marking.get_template(f"kernels/{plan.family}.cu.j2").render(prefill_names(plan))
        found[plan.name] = frozenset(used)
    return found


def cover(blocks: Mapping[str, frozenset[str]]) -> list[str]:
    """Few keys whose blocks are all blocks: always the one with the most that are still missing.

    In the end those go whose blocks the later ones have between them.
    """
    missing = set().union(*blocks.values())
    chosen = []
    while missing:
        best = max(sorted(blocks), key=lambda name: len(blocks[name] & missing))
        chosen.append(best)
        missing -= blocks[best]
    for name in tuple(chosen):
        others = (blocks[other] for other in chosen if other != name)
        if blocks[name] <= frozenset().union(*others):
            chosen.remove(name)
    return chosen


def covering_specs(specs: Iterable[KernelSpec]) -> list[KernelSpec]:
    """Few of these kernels that together use every template block that any of them uses."""
    plans = [plan_kernel(spec) for spec in specs]
    by_name = {plan.name: plan.spec for plan in plans}
    return [by_name[name] for name in cover(template_blocks(plans))]
