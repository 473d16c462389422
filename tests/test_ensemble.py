import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

import jaxhack as jh
from jaxhack import registry
from jaxhack.ensemble import ensemble
from jaxhack.objective import listener

WAV = jnp.asarray(toys.speechlike(0.2, 3))
LENGTH = jnp.int32(len(WAV))


def other():
    """Another target, at another rate."""
    toy = toys.predictor()
    return toy._replace(name="other", params=-toy.params, sample_rate=8000, min_samples=100)


@pytest.mark.parametrize(("how", "reduce"), [("min", np.min), ("mean", np.mean)])
def test_the_score_is_that_of_its_members(how, reduce):
    a, b = toys.predictor(), other()
    both = ensemble([a, b], how)
    heads = jax.jit(both.heads)(both.params, WAV, LENGTH)
    alone = [jax.jit(listener(m, 16000))(WAV, LENGTH) for m in (a, b)]
    np.testing.assert_allclose(heads, [reduce(alone), *alone], rtol=1e-6)
    assert (both.name, both.head_names) == (f"{how}(toy,other)", (how, "toy", "other"))
    assert (both.sample_rate, both.min_samples, both.scale) == (16000, 200, (1.0, 5.0))
    slope = jax.jit(jax.grad(lambda w: both.score(both.params, w, LENGTH)))(WAV)
    assert both.differentiable and np.isfinite(slope).all() and np.abs(slope).max() > 0


def test_what_one_cannot_score_has_no_score():
    both = ensemble([toys.predictor(), other()], "min")
    assert np.isnan(both.score(both.params, WAV[:16], jnp.int32(10)))


def test_at_another_rate_members_change_theirs():
    own = toys.predictor()._replace(at_rate=lambda hz: toys.predictor()._replace(sample_rate=hz))
    at = registry.at_rate(ensemble([own, other()], "mean"), 24000)
    expected = listener(own.at_rate(24000), 24000)(WAV, LENGTH), listener(other(), 24000)(WAV, LENGTH)
    assert at.sample_rate == 24000
    np.testing.assert_allclose(at.heads(at.params, WAV, LENGTH)[1:], expected, rtol=1e-6)


def test_a_black_box_makes_it_one():
    assert not ensemble([toys.predictor(), toys.predictor(differentiable=False)]).differentiable


@pytest.mark.parametrize(
    ("members", "how", "reason"),
    [
        ([toys.predictor()], "min", "at least two predictors, got 1"),
        ([toys.predictor()] * 2, "max", "by min or mean, not by 'max'"),
        ([toys.predictor(), toys.predictor()._replace(scale=(0, 1))], "min", "toy 1–5, toy 0–1"),
    ],
)
def test_refusals(members, how, reason):
    with pytest.raises(ValueError, match=reason):
        ensemble(members, how)


def test_by_name(monkeypatch):
    entry = registry.ENTRIES["nisqa"]._replace(make="toys:listed", weights="toys:NO_WEIGHTS")
    monkeypatch.setitem(registry.ENTRIES, "one", entry)
    both = jh.predictor("mean(one, one)")
    assert both.name == "mean(toy,toy)" and jh.predictor("min(one,one)", sample_rate=8000).sample_rate == 8000
    with pytest.raises(ValueError, match="Unknown predictor 'ons'; did you mean one"):
        jh.predictor("min(one,ons)")
