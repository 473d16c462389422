"""Profiles: named sizes that explicit settings override."""

import subprocess
import sys
from dataclasses import asdict

import pytest

from jaxhack.settings import PROFILES, Recipe, Settings, described, first_look, takes_long

SIZES = {"quick": (2, 25, 4, 2.0), "standard": (3, 300, 4, 3.0), "paper": (5, 2000, 8, 3.0)}


def sizes(settings: Settings) -> tuple:
    return settings.seeds, settings.steps, settings.batch, settings.crop_seconds


@pytest.mark.parametrize("profile", SIZES)
def test_a_profile_sets_sizes_alone(profile):
    assert list(PROFILES) == list(SIZES)
    made = Settings.of(profile)
    assert made.profile == profile and sizes(made) == SIZES[profile]
    assert (made.attacker, made.group, made.epsilon, made.tau, made.limit) == ("grpo", 8, 0.5, 0.3, None)


def test_what_is_given_overrides_the_profile_and_none_does_not():
    made = Settings.of("quick", steps=7, seeds=None, epsilon=0.0, limit=None)
    assert (made.profile, made.epsilon, sizes(made)) == ("quick", 0.0, (2, 7, 4, 2.0))
    assert PROFILES["quick"]["steps"] == 25
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Settings.of("quick", steps=0)


def test_settings_without_a_profile_are_the_papers():
    assert Settings() == Settings.of("paper")


@pytest.mark.parametrize("name, hint", [("quik", "did you mean quick"), ("9", "known: quick, standard, paper")])
def test_an_unknown_profile_is_answered_with_those_there_are(name, hint):
    with pytest.raises(ValueError, match=f"Unknown profile '{name}'; {hint}"):
        Settings.of(name)


@pytest.mark.parametrize(
    "made, expected",
    [
        (Settings.of("quick"), True),
        (Settings.of("quick", seeds=900), True),  # more attackers, none of which learns more
        (Settings.of("quick", steps=300), False),
        (Settings.of("standard"), False),
        (Settings.of("standard", steps=299), True),
        (Settings.of("standard", group=7), True),
        (Settings(steps=1), True),
        (Settings(), False),
    ],
)
def test_first_look(made, expected):
    assert first_look(asdict(made)) is expected


@pytest.mark.parametrize(
    "made, text, long",
    [
        (Settings.of("quick"), "quick profile", False),
        (Settings.of("standard", steps=301), "standard profile with other sizes", False),
        (Settings.of("standard", epsilon=0.1), "standard profile", False),
        (Settings(), "paper profile", True),
        (Settings(steps=1), "paper profile with other sizes", False),
    ],
)
def test_settings_in_words(made, text, long):
    assert (described(asdict(made)), takes_long(asdict(made))) == (text, long)


@pytest.mark.parametrize("name", ["seeds", "steps", "batch", "group", "seed", "limit"])
@pytest.mark.parametrize("value", [2.5, float("nan"), True, "3"])
def test_numbers_are_whole(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number"):
        Settings(**{name: value})


@pytest.mark.parametrize("value", [2.5, True])
def test_numbers_of_a_recipe_are_whole(value):
    with pytest.raises(ValueError, match="rounds must be a whole number"):
        Recipe(rounds=value)


def test_settings_are_read_without_jax():
    code = "import sys, jaxhack.settings; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"
