"""Pages that are made from the code are current; `make docs` renews them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.timeline import deepseek, draw, timeline
from mlagen.cli.spec_page import spec_page
from mlagen.cli.support import known_options, support_table
from mlagen.settings import VARIABLES
from mlagen.spec.schema import json_schema, schema_text

CHECKOUT = Path(__file__).parent.parent.parent


def test_spec_page_is_current() -> None:
    assert (CHECKOUT / "docs" / "spec.md").read_text(encoding="utf-8") == spec_page()


def test_committed_schema_is_current() -> None:
    committed = (CHECKOUT / "specs" / "mlagen.schema.json").read_text(encoding="utf-8")
    assert committed == schema_text()


def test_picture_of_the_schedule_is_current() -> None:
    committed = (CHECKOUT / "docs" / "kernels" / "prefill_sm100.svg").read_text(encoding="utf-8")
    assert committed == draw(timeline(deepseek()))


def test_supported_table_of_the_readme_is_current() -> None:
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    shown = readme.split("<!-- supported:begin -->\n")[1].split("<!-- supported:end -->")[0]
    assert shown == support_table()


def test_supported_table_shows_every_kind_of_the_schema() -> None:
    shown = {(option.option, option.value.split(",")[0].split()[0]) for option in known_options()}
    definitions = json_schema()["$defs"]
    for option, union in (("mask", "Mask"), ("score_mod", "ScoreMod")):
        (kinds,) = [part for part in definitions[union]["anyOf"] if "discriminator" in part]
        for kind in kinds["discriminator"]["mapping"]:
            assert (option, kind) in shown
    for option, definition, field in (("kv", "KV", "layout"), ("k_rope", "KRope", "layout")):
        for layout in definitions[definition]["properties"][field]["enum"]:
            assert (option, layout) in shown


def test_readme_lists_every_setting() -> None:
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    for name in VARIABLES:
        assert f"| `{name}` |" in readme
