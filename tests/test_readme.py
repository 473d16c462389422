"""What the README shows is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import jaxhack as jh
from jaxhack.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs():
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    names: dict = {}
    exec(code, names)
    assert names["attacker"].name == "grpo" and names["attacker"].per_step.scores == 64


def test_every_name_is_explained():
    table = README.split("## Predictors and codecs")[1]
    assert all(f"`{name}`" in table for name in jh.registry.names())


def test_every_command_and_option_shown_exists():
    for command, rest in re.findall(
        r"jaxhack (\w+)([^\n#]*)", "\n".join(re.findall(r"^    .*$", README, re.MULTILINE))
    ):
        help_text = CliRunner().invoke(main, [command, "--help"]).output
        assert "Usage" in help_text, command
        assert all(option in help_text for option in re.findall(r"--[\w-]+", rest)), rest


def test_there_are_two_set_up_commands():
    assert len(re.findall(r"^    pip install", README, re.MULTILINE)) == 2


COMMANDS = [
    line.split()
    for file in (ROOT / "experiments").glob("*/README.md")
    for line in re.findall(r"^    (python -m experiments\S+)", file.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("command", sorted({tuple(c) for c in COMMANDS}), ids=" ".join)
def test_commands_of_experiments_run(command):
    """As written, in the repository's folder, without this suite's search path."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, *command[1:], "--help"], cwd=ROOT, env=environment, capture_output=True)
    assert done.returncode == 0 and b"usage" in done.stdout, done.stderr.decode()
