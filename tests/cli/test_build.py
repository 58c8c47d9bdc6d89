"""`mlagen build`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlagen.artifacts import open_kernels
from mlagen.build import build_plans
from mlagen.errors import CompileError
from mlagen.kernel_compiler import BuiltKernel, FailedKernel
from tests.cli.conftest import SPEC, Command, fill_cache

if TYPE_CHECKING:
    from mlagen.plan.plan import KernelPlan

GENERATED = Path("generated") / "small"


def test_table_names_kernels_and_what_they_take(mlagen: Command, built: Path) -> None:
    outcome = mlagen("build", built)
    assert outcome.status == 0
    heading, *rows = outcome.out.splitlines()
    assert heading.split()[:3] == ["kernel", "registers", "spills"]
    assert [row.split()[2] for row in rows] == ["0", "0"]
    assert "2 from the cache" in outcome.err


def test_sources_are_written_where_a_diff_can_be_read(mlagen: Command, built: Path) -> None:
    assert mlagen("build", built).status == 0
    assert len(list((GENERATED / "sm_90a").glob("mla_prefill_*.cu"))) == 2
    assert "0 files changed" in mlagen("build", built).err


def test_json_holds_what_a_script_needs(mlagen: Command, built: Path) -> None:
    document = json.loads(mlagen("build", built, "--json").out)
    assert document["spec"] == "small"
    assert document["failed"] == []
    for kernel in document["kernels"]:
        assert kernel["cached"]
        assert len(kernel["key"]) == len(kernel["spec_hash"]) == 64
        assert kernel["resources"]["spill_store_bytes"] == 0


def test_kernel_is_compiled_once(mlagen: Command, spec: Path) -> None:
    first = json.loads(mlagen("build", spec, "-k", "causal", "--json").out)
    again = json.loads(mlagen("build", spec, "-k", "causal", "--json").out)
    assert [kernel["cached"] for kernel in first["kernels"] + again["kernels"]] == [False, True]


def test_words_choose_kernels_and_leave_generated_alone(mlagen: Command, built: Path) -> None:
    document = json.loads(mlagen("build", built, "-k", "causal", "-k", "bf16", "--json").out)
    (kernel,) = document["kernels"]
    assert "causal" in kernel["name"]
    assert not Path("generated").exists()


def test_words_that_match_nothing_are_answered_with_the_names(mlagen: Command, spec: Path) -> None:
    outcome = mlagen("build", spec, "-k", "fp8")
    assert outcome.status == 2
    assert "-k fp8" in outcome.err
    assert "mla_prefill_sm90a" in outcome.err
    assert "give words of one name after -k" in outcome.err.splitlines()[-1]


def test_architecture_that_the_spec_does_not_name(mlagen: Command, spec: Path) -> None:
    assert mlagen("build", spec, "--arch", "sm_100a").status == 2
    outcome = mlagen("build", spec, "--arch", "sm_90")
    assert outcome.status == 2
    assert "choose from sm_90a, sm_100a" in outcome.err


def test_out_writes_a_folder_that_needs_no_compiler(mlagen: Command, built: Path) -> None:
    assert mlagen("build", built, "--out", "kernels").status == 0
    assert len(open_kernels(Path("kernels"))) == 2
    assert not Path("generated").exists()


def test_out_that_cannot_be_written(mlagen: Command, built: Path) -> None:
    Path("file").write_text("", encoding="utf-8")
    outcome = mlagen("build", built, "--out", Path("file") / "kernels")
    assert outcome.status == 3
    assert "file/kernels" in outcome.err


def test_no_compile_writes_sources_only(mlagen: Command, spec: Path, cache_folder: Path) -> None:
    assert mlagen("build", spec, "--no-compile").status == 0
    assert len(list((GENERATED / "sm_90a").glob("*.cu"))) == 2
    assert not cache_folder.exists()


@pytest.mark.parametrize("other", ["--check", "--no-compile"])
def test_options_that_contradict_each_other(mlagen: Command, spec: Path, other: str) -> None:
    assert mlagen("build", spec, other, "--out", "kernels").status == 2
    assert mlagen("build", spec, other, "-k", "causal").status == 2


class TestCheck:
    """`mlagen build --check`."""

    @pytest.fixture(autouse=True)
    def _generated(self, mlagen: Command, spec: Path) -> None:
        assert mlagen("build", spec, "--no-compile").status == 0

    def test_current_sources_pass(self, mlagen: Command, spec: Path, cache_folder: Path) -> None:
        outcome = mlagen("build", spec, "--check")
        assert outcome.status == 0
        assert outcome.out == ""
        assert not cache_folder.exists()

    def test_changed_line_is_shown_as_a_diff(self, mlagen: Command, spec: Path) -> None:
        path = min(GENERATED.rglob("*.cu"))
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("kTileM = 128", "kTileM = 64"), encoding="utf-8")
        outcome = mlagen("build", spec, "--check")
        assert outcome.status == 1
        assert "-constexpr int kTileM = 64;" in outcome.out
        assert "+constexpr int kTileM = 128;" in outcome.out
        assert f"mlagen build {spec}" in outcome.err
        assert "kTileM = 64" in path.read_text(encoding="utf-8")

    def test_missing_file_is_found(self, mlagen: Command, spec: Path) -> None:
        min(GENERATED.rglob("*.cu")).unlink()
        assert mlagen("build", spec, "--check").status == 1

    def test_file_of_a_kernel_that_is_gone_is_found_and_removed(
        self, mlagen: Command, spec: Path
    ) -> None:
        spec.write_text(SPEC.replace("[causal, none]", "causal"), encoding="utf-8")
        assert mlagen("build", spec, "--check").status == 1
        assert mlagen("build", spec, "--no-compile").status == 0
        assert len(list(GENERATED.rglob("*.cu"))) == 1
        assert mlagen("build", spec, "--check").status == 0

    def test_json(self, mlagen: Command, spec: Path) -> None:
        assert json.loads(mlagen("build", spec, "--check", "--json").out)["current"] is True


def test_spec_errors_have_a_place_and_leave_nothing(mlagen: Command, spec: Path) -> None:
    spec.write_text(SPEC.replace("mask: [causal", "mask: [casual"), encoding="utf-8")
    outcome = mlagen("build", spec)
    assert outcome.status == 2
    assert outcome.err.startswith("small.yaml:12:")
    assert "did you mean 'causal'" in outcome.err
    assert outcome.out == ""
    assert sorted(path.name for path in Path().iterdir()) == ["small.yaml"]


def test_option_without_a_kernel_is_refused_with_the_kernel_and_the_reason(
    mlagen: Command, spec: Path
) -> None:
    spec.write_text(SPEC.replace("[causal, none]", "[causal, document]"), encoding="utf-8")
    outcome = mlagen("build", spec)
    assert outcome.status == 2
    assert outcome.err.startswith("small.yaml: mla_prefill_sm90a_192x128_bf16_document")
    assert "not available" in outcome.err
    assert "available: none, causal" in outcome.err


def test_missing_spec_is_answered_with_those_that_ship(mlagen: Command) -> None:
    outcome = mlagen("build", "nowhere.yaml")
    assert outcome.status == 2
    assert "nowhere.yaml: no such file" in outcome.err
    assert "deepseek.yaml" in outcome.err


def test_failed_kernel_is_reported_and_the_others_are_kept(
    mlagen: Command, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_first(plans: list[KernelPlan], **_: object) -> list[BuiltKernel | FailedKernel]:
        rest = build_plans(plans[1:])
        return [FailedKernel(plans[0], CompileError("kernel: spills: 88 bytes"), 1.0), *rest]

    monkeypatch.setattr("mlagen.cli.build.build_plans", fail_first)
    outcome = mlagen("build", built)
    assert outcome.status == 1
    assert len(outcome.out.splitlines()) == 2
    assert "spills: 88 bytes" in outcome.err
    assert not Path("generated").exists()


def test_lint_that_is_skipped_is_said(
    mlagen: Command, spec: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_cache(cache_folder, linted=False)
    monkeypatch.setattr("mlagen.kernel_compiler.find_nvdisasm", lambda: None)
    outcome = mlagen("build", spec, "-k", "causal")
    assert outcome.status == 0
    assert "lint was skipped: pip install nvidia-cuda-nvdisasm" in outcome.err
    strict = mlagen("build", spec, "-k", "causal", "--lint", "strict")
    assert strict.status == 3
    assert "nvdisasm" in strict.err
