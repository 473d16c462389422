"""Profiles: named sizes that explicit settings override."""

import subprocess
import sys
from dataclasses import asdict

import pytest

from jaxhack.settings import PROFILES, Settings, first_look

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
        (Settings.of("quick", seeds=3, steps=299), True),
        (Settings.of("quick", seeds=3, steps=300), False),
        (Settings.of("standard", steps=1), False),
        (Settings(), False),
    ],
)
def test_first_look(made, expected):
    assert first_look(asdict(made)) is expected


def test_old_settings_are_no_first_look():
    assert not first_look({"seeds": 1, "steps": 1, "batch": 1})


def test_settings_are_read_without_jax():
    code = "import sys, jaxhack.settings; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"
