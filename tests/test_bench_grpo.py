"""The benchmarks of a GRPO step: both sides compute the same step, and the numbers are those of what was run."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from click.testing import CliRunner

from benchmarks import bench_attackers, bench_grpo
from jaxhack.attackers.grpo import group_advantages
from ports.lyra import Decoder


@pytest.fixture(scope="module")
def job():
    wavs = np.stack([toys.speechlike(0.05, seed) for seed in range(4)])
    return bench_grpo.prepare(toys.predictor(), toys.codec(), wavs, bench_grpo.TINY)


@pytest.mark.standard_promotion
def test_a_step_of_one_attacker(job):
    result = bench_grpo.bench(job, None, 1)
    (row,) = result["rows"]
    assert row["side"] == "jaxhack" and row["median_s"] > 0
    assert (result["batch"], result["group"], result["repeats"]) == (2, 2, 1)
    assert "agreement not checked" in result["notes"][0] and "agreement" not in result
    assert result["peak_memory_jax_alone_mb"] > 1


@pytest.mark.standard_promotion
def test_attackers_differ_in_all_that_they_are_given(job):
    weights, states, keys, points = job.arguments(2)
    for leaf in (jax.tree.leaves(states.params)[1], jax.random.key_data(keys), points.features):
        assert leaf.shape[0] == 2 and not np.array_equal(leaf[0], leaf[1])
    moved, metrics = jax.jit(job.step)(weights, states, keys, points)
    assert metrics["reward"].shape == (2,)
    assert not np.array_equal(jax.tree.leaves(moved.params)[1], jax.tree.leaves(states.params)[1])


@pytest.mark.standard_promotion
@pytest.mark.quick_compilation
def test_tiny_run(shared, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("nisqa")
    result = run(bench_grpo.main, tmp_path, "--models", shared / "models", "--speech", shared / "speech")
    assert [row["side"] for row in result["rows"]] == ["jaxhack", "eager PyTorch"]
    assert all(row["median_s"] > 0 for row in result["rows"]) and result["rows"][0]["times_faster"] > 0
    assert len(result["agreement"]) == 5
    assert max(list(result["agreement"].values())[:4]) < 1e-3


@pytest.mark.standard_promotion
def test_tiny_run_of_several_attackers(job, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(bench_attackers, "real_job", lambda *args: asked.append(args) or job)
    result = run(bench_attackers.main, tmp_path, "--models", "m", "--speech", "s")
    assert asked == [(Path("m"), Path("s"), bench_grpo.TINY, 3)]
    assert [row["attackers"] for row in result["rows"]] == [1, 2]
    one, two = result["rows"]
    assert one["of_k_times_one"] == 1.0
    assert two["attacker_step_s"] == two["median_s"] / 2
    assert two["of_k_times_one"] == pytest.approx(two["median_s"] / 2 / one["median_s"])


def run(main, folder, *arguments):
    out = folder / "numbers.json"
    done = CliRunner().invoke(main, ["--tiny", "--out", str(out), *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(out.read_text())


def test_the_plain_decoder_is_lyras():
    grpo_torch = plain()
    random, z = np.random.default_rng(0), np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    shapes = jax.eval_shape(Decoder().init, jax.random.key(0), z)["params"]
    params = jax.tree.map(lambda x: random.normal(0, 0.05, x.shape).astype(np.float32), shapes)
    ours = jax.jit(lambda params: Decoder().apply({"params": params}, z))(params)
    theirs = grpo_torch.Decoder(params)(grpo_torch.tensor(z)[None])[0]
    assert ours.shape == (4 * 320,)
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(jnp.abs(ours).max()))


def test_the_plain_policy_and_advantages_are_ours(job):
    grpo_torch = plain()
    weights, states, _, points = job.arguments(1)
    first = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731
    state, points = first(states), first(points)
    ours = jax.vmap(job.setup.attacker(weights).act, (None, None, 0))(state, jax.random.key(0), points)
    theirs, log_sigma = grpo_torch.Policy(state.params["params"])(grpo_torch.tensor(points.features))
    np.testing.assert_allclose(ours, theirs.detach(), atol=1e-5)
    assert not log_sigma.detach().any()
    rewards = np.array([[1.0, 2.0, 3.0], [4.0, 4.5, 3.0]], np.float32)
    expected = np.array([[-1.22459, 0.0, 1.22459], [0.26724, 1.06896, -1.33620]])
    np.testing.assert_allclose(grpo_torch.advantages(grpo_torch.tensor(rewards)), expected, atol=2e-4)
    np.testing.assert_allclose(group_advantages(jnp.asarray(rewards))[0], expected, atol=2e-4)


def plain():
    pytest.importorskip("torch")
    return pytest.importorskip("benchmarks.grpo_torch")
