"""How near a port is to its original: measured, asserted, and written down with ``pytest --parity FILE``."""

from pathlib import Path

import numpy as np
import pytest

PAGE = """# How near the ports are to their originals

Written by `pytest --parity ports/PARITY.md`, which runs the parity tests and nothing else. Each line is the largest
error that a test found then, and the tolerance that it always asserts. Relative errors are over the largest value of
the original. Where no published weights are at hand, both sides were given the same random ones, through the official
names; `small` is a narrow configuration of the same architecture, `full size`, `base` and `large` are the published
ones.

| port | stage | largest error | tolerance | unit |
| --- | --- | --- | --- | --- |
"""


def largest(actual, expected) -> float:
    """The largest absolute difference; shapes must be equal, and NaN is as far as can be."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"shapes {actual.shape} and {expected.shape}"
    return float(np.nan_to_num(np.abs(actual - expected), nan=np.inf).max())


def relative(actual, expected) -> float:
    """The largest absolute difference over the largest expected value."""
    return largest(actual, expected) / float(np.abs(np.asarray(expected)).max())


def differing(actual, expected) -> float:
    """The share of entries that are not equal."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shapes {actual.shape} and {expected.shape}"
    return float(np.mean(actual != expected))


@pytest.fixture
def parity(record_property):
    """Asserts that a stage of a port is as near to its original as promised, and notes how near."""

    def check(port: str, stage: str, error: float, tolerance: float, unit: str = ""):
        record_property("parity", [port, stage, float(error), tolerance, unit])
        assert error <= tolerance, f"{port}, {stage}: off by {error:.3g} {unit}, allowed {tolerance:g}"

    return check


def pytest_addoption(parser: pytest.Parser):
    parser.addoption("--parity", metavar="FILE", type=Path, help="run the parity tests alone and write their table")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    if config.getoption("--parity"):
        items[:] = [item for item in items if "parity" in getattr(item, "fixturenames", ())]


def pytest_terminal_summary(terminalreporter, config: pytest.Config):
    file = config.getoption("--parity")
    if file is None:
        return
    lacking = [len(terminalreporter.stats.get(kind, [])) for kind in ("failed", "error", "skipped")]
    if any(lacking):
        failed, skipped = lacking[0] + lacking[1], lacking[2]
        terminalreporter.write_line(f"{file} is not written: {failed} tests failed and {skipped} were skipped.")
        return
    worst: dict[tuple, float] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "parity":
                port, stage, error, tolerance, unit = value
                key = (port, stage, tolerance, unit)
                worst[key] = max(error, worst.get(key, error))
    rows = [f"| {p} | {s} | {e:.2g} | {t:g} | {u} |" for (p, s, t, u), e in sorted(worst.items())]
    file.write_text(PAGE + "\n".join(rows) + "\n")
    terminalreporter.write_line(f"{len(rows)} lines written to {file}.")
