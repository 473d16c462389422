"""What the README shows is true."""

import re
from pathlib import Path

from click.testing import CliRunner

import jaxhack as jh
from jaxhack.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_example_runs(shared, monkeypatch):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    names: dict = {}
    exec(code.replace("../shared/models", str(shared / "models")), names)
    assert names["attacker"].name == "grpo" and names["attacker"].queries_per_step == 64


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
