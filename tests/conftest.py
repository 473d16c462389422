"""Every test runs under 8 emulated CPU devices and strict dtype promotion."""

import os
import tempfile

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

from pathlib import Path

import jax
import pytest

from jaxhack import examples, parallel
from jaxhack.run import write_json

pytest_plugins = ["parity"]

# A core for each worker: two of them taking turns on both are slower than either alone.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if _WORKER and hasattr(os, "sched_setaffinity"):
    _CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_CORES[int(_WORKER.removeprefix("gw")) % len(_CORES)]})

# Eight emulated devices on two cores: programs queued behind each other could starve a collective for good.
jax.config.update("jax_cpu_enable_async_dispatch", False)

# Programs compiled once serve every test, worker and subprocess of a session: workers find the controller's folder.
if not _WORKER:
    _CACHE = tempfile.TemporaryDirectory(prefix="jaxhack-xla-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real recordings and weights; tests that need them say so when they are absent."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real recordings and weights), which is absent")
    return SHARED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that spend their time in the compiler, and the fixtures they ask for, spare its expensive passes."""
    quick = item.get_closest_marker("quick_compilation") is not None
    jax.config.update("jax_disable_most_optimizations", quick)


@pytest.fixture(autouse=True)
def strict_promotion(request: pytest.FixtureRequest):
    """No implicit dtype promotion in our own code."""
    mode = "standard" if request.node.get_closest_marker("standard_promotion") else "strict"
    with jax.numpy_dtype_promotion(mode):
        yield


@pytest.fixture
def killable(tmp_path) -> dict[str, str]:
    """The environment of a process that imports the tests, and whose leavings go with the test's folder."""
    tests = Path(__file__).parent
    return os.environ | {"PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}", "TMPDIR": str(tmp_path)}


@pytest.fixture(scope="module")
def one_device():
    """As on one accelerator; how a batch is spread over several is tested in test_parallel and test_audit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "_run", lambda fn, args, chunk: jax.vmap(fn)(args))
        yield


@pytest.fixture(scope="module")
def no_examples():
    """Spares audits the program that renders listening examples; test_audit has them."""

    def write(setup, weights, states, test, folder):
        (folder / "examples").mkdir(exist_ok=True)
        write_json(folder / "examples" / "examples.json", [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examples, "write", write)
        yield
