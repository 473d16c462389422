"""``python -m jaxhack.cli``."""

from jaxhack.cli import main

main()
