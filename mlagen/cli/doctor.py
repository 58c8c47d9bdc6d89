"""`mlagen doctor`: what works on this machine, and how to mend the rest."""

from __future__ import annotations

import dataclasses

import click

from mlagen.cli.machine import Answer, examine
from mlagen.cli.options import Verb, debug_option, json_option
from mlagen.cli.output import print_facts, print_json


@click.command("doctor", cls=Verb)
@json_option
@debug_option
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Say what works on this machine, and how to mend the rest.

    Needs no GPU and changes nothing. The exit status is 0 if kernels can be built here, 3 if not;
    whether they can run here is said in words.

      mlagen doctor
      mlagen doctor --json | jq .can_run
    """
    answers = examine()
    can = {
        purpose: not any(answer.prevents == purpose for answer in answers)
        for purpose in ("build", "run")
    }
    if as_json:
        found = [dataclasses.asdict(answer) for answer in answers]
        print_json(
            {"can_build": can["build"], "can_run": can["build"] and can["run"], "found": found}
        )
    else:
        _print_answers(answers, can)
    ctx.exit(0 if can["build"] else 3)


def _print_answers(answers: list[Answer], can: dict[str, bool]) -> None:
    topic = ""
    width = max(len(answer.topic) for answer in answers)
    for answer in answers:
        shown = "" if answer.topic == topic else answer.topic
        topic = answer.topic
        print(f"{shown:{width}}  {answer.value}")
        if answer.mend:
            print(f"{'':{width}}  -> {answer.mend}")
    print()
    print_facts(
        {
            "build kernels here": "yes" if can["build"] else "no",
            "run kernels here": "yes" if can["build"] and can["run"] else "no",
            "simulate them here": "yes" if can["build"] else "no",
        }
    )
