"""The examples in documents run, as far as they need no GPU."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from mlagen.cli.main import run
from mlagen.errors import SpecError
from mlagen.spec.yaml import parse_spec

CHECKOUT = Path(__file__).parent.parent.parent
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- example: (?P<how>[^>]*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL
)


def blocks(language: str) -> list[tuple[str, str]]:
    """Return `(how, text)` of the README's blocks in one language."""
    found = BLOCK.finditer(README)
    return [(b["how"] or "", b["text"]) for b in found if b["language"] == language]


@pytest.mark.parametrize(("how", "text"), blocks("python"), ids=lambda value: value[:12])
def test_python_of_the_readme(how: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    code = compile(text, "README.md", "exec")
    if how == "run":
        exec(code, {})  # noqa: S102  # our own document
    else:
        assert how == "needs a GPU"


def test_spec_of_the_readme_is_valid() -> None:
    ((how, text),) = blocks("yaml")
    assert how == "spec"
    assert len(parse_spec(text, "README.md").expand()) == 3


def test_error_of_the_readme_is_what_its_spec_is_answered_with() -> None:
    ((_, text),) = blocks("yaml")
    with pytest.raises(SpecError) as caught:
        parse_spec(text.replace("[causal,", "[casual,"), "my-model.yaml")
    *place, advice = str(caught.value).splitlines()
    shown = "\n".join([*place, advice.split("sliding_window")[0]])
    assert f"```\n{shown}" in README


def test_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (spec,) = [text for _, text in blocks("yaml")]
    (tmp_path / "my-model.yaml").write_text(spec, encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (commands,) = [text for how, text in blocks("sh") if how.startswith("shell")]
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        if ">" in words:
            target = Path(words[words.index(">") + 1])
            words = words[: words.index(">")]
        else:
            target = None
        assert run(words[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
        if target:
            target.write_text(capsys.readouterr().out, encoding="utf-8")
    assert parse_spec((tmp_path / "model.yaml").read_text(encoding="utf-8")).expand()


CONFIG = {
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), f"{document}: {target}"


def test_shell_commands_name_targets_and_verbs_that_exist() -> None:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    for document in [*DOCUMENTS, CHECKOUT / "CONTRIBUTING.md"]:
        for target in re.findall(
            r"(?:^|`)make ([a-z-]+)", document.read_text("utf-8"), re.MULTILINE
        ):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{document}: make {target}"


def test_make_is_there() -> None:
    assert shutil.which("make")
