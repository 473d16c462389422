"""Options that several commands share, and what their texts mean."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from jaxhack.settings import DEFAULT_PANEL, PROFILES, Recipe, Settings

PATHS = click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
MODELS = click.option("--models", metavar="DIR", help="Folder of weight files, looked in first.")
RESUME = click.option("--resume", is_flag=True, help="Continue an interrupted run.")
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace the run in DIR.")
FORMAT = click.option(
    "--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv", help="Form of the rows."
)


def sized(flag: str, text: str) -> Callable:
    """An option that a profile sets where the caller does not; the help says to what."""
    name = flag.removeprefix("--").replace("-", "_")
    paper = getattr(Settings, name)
    values = {profile: f"{sizes.get(name, paper):g}" for profile, sizes in PROFILES.items()}
    same = len(set(values.values())) == 1
    default = values["paper"] if same else ", ".join(f"{profile} {value}" for profile, value in values.items())
    return click.option(flag, type=type(paper), help=f"{text}  [default: {default}]")


def listed(option: str, text: str) -> list[str]:
    """Names with commas between, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError(f"{option} is empty: name something, or leave it out.")
    return names


def size(text: str) -> float:
    """One of the sizes of --epsilon."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--epsilon takes numbers with commas between, got {text!r}.") from None


def assignment(text: str) -> tuple[str | None, str, Any]:
    """``[attacker.]name=value``, the value a number or true, false."""
    name, _, value = text.partition("=")
    owner, _, name = name.strip().rpartition(".")
    try:
        number = json.loads(value)
    except (ValueError, RecursionError):
        number = None
    if not (name and isinstance(number, int | float)):
        raise ValueError(f"--option takes NAME=VALUE with a number, true or false, got {text!r}.")
    return owner or None, name.replace("-", "_"), number


def halves(command: Callable) -> Callable:
    """What stands in place of PATH."""
    train = click.option(
        "--train", "train_paths", multiple=True, metavar="PATH", help="Training recordings, with --test."
    )
    test = click.option(
        "--test",
        "test_paths",
        multiple=True,
        metavar="PATH",
        help="Recordings that no attacker sees; patch leaves them untouched.",
    )
    return train(test(command))


def attack_options(command: Callable) -> Callable:
    """The options of whatever attacks."""
    options = (
        click.option(
            "--profile",
            metavar="|".join(PROFILES),
            help="Sizes to start from; what is given beside it overrides them.  "
            "[default: paper; quick without recordings]",
        ),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="[ATTACKER.]NAME=VALUE",
            callback=lambda ctx, param, given: list(map(assignment, given)),
            help="A further option of an attacker, such as pgd.steps=10.",
        ),
        sized("--seeds", "Attackers k that differ only in their seed."),
        sized("--steps", "Optimisation steps of each attacker that is trained; of others --option pgd.steps=."),
        sized("--batch", "Crops in a step."),
        sized("--group", "Actions drawn for a crop; at least 2."),
        sized("--crop-seconds", "Length of a training crop, s."),
        sized("--tau", "Gain that a hack exceeds, MOS."),
        click.option(
            "--panel",
            metavar="NAME[=MARGIN],…",
            default=DEFAULT_PANEL,
            help="Measures that may witness a hack: estoi, si_sdr, pesq, wer, speaker_similarity, "
            "speech_bert_score_ENCODER, or another predictor.",
        ),
        click.option("--limit", type=int, metavar="N", help="Recordings used in all.  [default: every one]"),
        click.option("--seed", type=int, default=0, help="Of the split, the attackers and the random actions."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def by_attacker(
    options: Iterable[tuple[str | None, str, Any]], attackers: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Each attacker's further options; one without an owner is the only attacker's.

    Raises:
      ValueError: there are several attackers, and nothing says whose it is.
    """
    made: dict[str, dict[str, Any]] = {}
    for owner, name, value in options:
        if owner is None and len(attackers) > 1:
            raise ValueError(f"--option must say whose {name} is meant: --option {attackers[0]}.{name}=VALUE.")
        made.setdefault(owner or attackers[0].rpartition("/")[2], {})[name] = value
    return made


def recipe_option(flag: str, text: str, **more: Any) -> Callable:
    """An option of how a predictor is trained against pairs."""
    return click.option(flag, default=getattr(Recipe, flag.removeprefix("--").replace("-", "_")), help=text, **more)


def folder_name(predictor: str) -> str:
    """A name for a predictor's run: of a file its stem, else what it is called by."""
    last = Path(predictor).stem if predictor.lower().endswith(".onnx") else predictor.replace(":", ".")
    return re.sub(r"[^\w.-]+", "_", last).strip("._") or "predictor"
