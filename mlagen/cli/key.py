"""`mlagen key`: the identity of kernels, and what goes into it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from mlagen.build import build_key
from mlagen.cli.options import Verb, debug_option, json_option, kernel_argument, target_argument
from mlagen.cli.output import print_code, print_facts, print_json
from mlagen.cli.selection import find_kernel
from mlagen.errors import MissingDependencyError
from mlagen.plan import plan_kernel
from mlagen.plan.name import kernel_name
from mlagen.render import render_kernel

if TYPE_CHECKING:
    from mlagen.build import BuildKey
    from mlagen.spec.model import KernelSpec


@click.command("key", cls=Verb)
@target_argument
@kernel_argument
@json_option
@debug_option
def command(*, target: str, kernel: str | None, as_json: bool) -> None:
    """Show a kernel's identity and what went into it, so that anyone can redo it.

    The spec hash is the SHA-256 of the canonical JSON; the build key, that of source, architecture,
    options and compiler, names the binary in the cache.

      mlagen key specs/deepseek.yaml mla_prefill_sm90a_192x128_bf16_causal_dense
      mlagen key model.yaml fd47 --json | jq -rj .canonical_json | sha256sum
    """
    spec = find_kernel(target, kernel)
    key = _build_key(spec)
    if as_json:
        print_json(
            {
                "name": kernel_name(spec),
                "spec_hash": spec.hash,
                "canonical_json": spec.canonical_json,
                "build_key": None if key is None else key.digest,
                "build_key_json": None if key is None else key.canonical,
            }
        )
        return
    facts: dict[str, object] = {"name": kernel_name(spec), "spec hash": spec.hash}
    facts["build key"] = "none here: there is no NVRTC" if key is None else key.digest
    print_facts(facts)
    print("\nspec, in canonical form:")
    print_code(json.dumps(spec.canonical, indent=2, ensure_ascii=False), language="json")
    if key is not None:
        print("\nbuild:")
        print_code(json.dumps(json.loads(key.canonical), indent=2), language="json")


def _build_key(spec: KernelSpec) -> BuildKey | None:
    """Return the build key; None on a machine that cannot compile."""
    try:
        return build_key(render_kernel(plan_kernel(spec)), arch=spec.arch)
    except MissingDependencyError:
        return None
