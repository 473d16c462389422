"""The public names are what they say, in whatever order modules are imported."""

import importlib
import pkgutil

import jaxhack


def test_no_module_hides_a_function():
    modules = {module.name for module in pkgutil.iter_modules(jaxhack.__path__)}
    assert not modules & set(jaxhack._FUNCTIONS), "importing the module would put it in the function's place"
    for module in modules:
        importlib.import_module(f"jaxhack.{module}")
    for name in jaxhack._FUNCTIONS:
        assert callable(getattr(jaxhack, name))
