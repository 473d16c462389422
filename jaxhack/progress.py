"""What a person watches while an audit runs, on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxhack.settings import described, first_look, sizes, takes_long

STAGES = {
    **{"measure": "measuring", "encode": "encoding", "train": "training", "attack": "attacking", "fit": "fitting"},
    "certify": "certifying",
}


@contextmanager
def display() -> Iterator[Callable[[str, int, int, dict[str, Any]], None]]:
    """An observer of :func:`jaxhack.audit`: what is about to run, then bars in a terminal, lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[figures]}"),
    )
    last: dict[str, int] = {}
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, Any] = {}

        def observe(stage: str, done: int, total: int, metrics: dict[str, Any]) -> None:
            if stage == "start":
                console.print(_plan(total, metrics), markup=False, highlight=False, soft_wrap=True)
                return
            name, figures = STAGES[stage], _figures(metrics)
            if stage not in tasks:
                tasks[stage] = bars.add_task(name, total=total, figures="")
            bars.update(tasks[stage], completed=done, total=total, figures=figures)
            tenth = done * 10 // max(total, 1)
            if bars.disable and tenth != last.get(stage):
                last[stage] = tenth
                console.print(f"{name} {done}/{total} {figures}".rstrip(), highlight=False, soft_wrap=True)

        yield observe


def _figures(metrics: dict[str, Any]) -> str:
    """The newest step's means over attackers, or of a fit its losses."""
    if "reward" not in metrics:
        return ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
    newest = {name: float(values[-1].mean()) for name, values in metrics.items()}
    spread = f" ± {newest['reward_sd']:.3f} in a group" if "reward_sd" in newest else ""
    return f"reward {newest['reward']:.3f}{spread}"


def _plan(recordings: int, plan: dict[str, Any]) -> str:
    """One line: what, in which space, and how large."""
    if "target" in plan:
        attackers = f"{plan['attacker']} attackers of {plan['target']} in {plan['name']}"
        return f"{plan['predictor']} judges what the {attackers} make of {recordings} recordings"
    return (
        (f"{plan['number']}: " if "number" in plan else "")
        + f"Auditing {plan['predictor']} in {plan['name']} by {plan['attacker']}: {described(plan)}, {sizes(plan)}, "
        + f"{recordings} {'demo ' if plan['demo'] else ''}recordings"
        + ("; a first look, not a result" if first_look(plan) else "")
        + ("; on a CPU this takes many hours, --profile standard takes fewer" if takes_long(plan) else "")
    )
