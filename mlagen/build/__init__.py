"""Build: a spec file through plan, render, compile and cache, and what is committed of it.

Belongs here: the pipeline over one kernel and over many, `generated/`. Not here: folders of kernels
for machines without a compiler (`artifacts`), progress bars (`cli`).
"""

from __future__ import annotations

from mlagen.build.generated import check_generated, render_tree, write_generated
from mlagen.build.kernel import (
    BuiltKernel,
    FailedKernel,
    LintPolicy,
    LintState,
    build_key,
)
from mlagen.build.parallel import BuildEvent, Progress, build_plans, build_specs, plan_specs

__all__ = [
    "BuildEvent",
    "BuiltKernel",
    "FailedKernel",
    "LintPolicy",
    "LintState",
    "Progress",
    "build_key",
    "build_plans",
    "build_specs",
    "check_generated",
    "plan_specs",
    "render_tree",
    "write_generated",
]
