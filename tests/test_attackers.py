import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import CHANNELS, TARGET, codec, predictor, speechlike

from jaxhack.attackers import group_advantages, grpo, random
from jaxhack.objective import objective
from jaxhack.spaces import latent

pytestmark = [
    pytest.mark.standard_promotion,  # optax
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("one_device"),
]


def setup(clips=4):
    space = latent(codec(), epsilon=0.5)
    wavs = jnp.stack([speechlike(0.25, i) for i in range(clips)])
    points = jax.vmap(space.encode)(wavs, jnp.full(clips, wavs.shape[1], jnp.int32))
    return space, objective(predictor(), space), points


def first(points):
    return jax.tree.map(lambda x: x[0], points)


def test_group_advantages_of_known_groups():
    r = np.full((6, 8), 3.7123, np.float32)
    r[1, :7], r[1, 7] = 0.35, 1.0
    r[2, 3] = np.nan
    r[3, 0] = np.inf
    r[4, :] = np.nan
    r[5] = np.arange(8)
    advantages, equal, broken = group_advantages(jnp.asarray(r))
    assert equal.tolist() == [True, False, False, False, False, False]
    assert broken.tolist() == [False, False, True, True, True, False]
    np.testing.assert_array_equal(advantages[jnp.array([0, 2, 3, 4])], 0.0)
    np.testing.assert_allclose(advantages[1], [-0.37778] * 7 + [2.64450], atol=2e-3)
    np.testing.assert_allclose(advantages[5], (np.arange(8) - 3.5) / np.std(np.arange(8)), atol=1e-3)


@pytest.mark.parametrize(
    "option", [{"group": 1}, {"batch": 0}, {"epochs": 0}, {"sigma": -1.0}, {"learning_rate": 0.0}]
)
def test_options_out_of_range_are_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        grpo(setup()[1], **option)


def test_random_needs_a_draw():
    with pytest.raises(ValueError, match="at least 1 draw"):
        random(setup()[1], draws=0)


@pytest.mark.parametrize("normalise_mean", [True, False])
def test_grpo_finds_the_known_optimum(normalise_mean):
    _space, target, points = setup()
    attacker = grpo(target, batch=4, hidden=32, normalise_mean=normalise_mean)

    def body(state, key):
        return attacker.step(state, key, points)

    state = attacker.init(jax.random.key(0))
    state, metrics = jax.jit(lambda s: jax.lax.scan(body, s, jax.random.split(jax.random.key(1), 80)))(state)
    state, metrics = jax.device_get((state, metrics))
    action = attacker.act(state, jax.random.key(0), first(points))
    scale = np.asarray(first(points).content[1])  # the score moves by ⟨δ ⊙ s_z, target⟩
    cosine = np.dot(action, scale * TARGET) / np.linalg.norm(action) / np.linalg.norm(scale * TARGET)
    assert cosine > 0.9
    assert not metrics["groups_broken"].any()


@pytest.mark.parametrize("score,metric", [(3.7123, "groups_equal"), (float("nan"), "groups_broken")])
def test_rewards_that_teach_nothing_are_counted_and_change_nothing(score, metric):
    space, _, points = setup()
    dull = predictor()._replace(heads=lambda p, wav, length: jnp.full(1, score))
    attacker = grpo(objective(dull, space), batch=4, hidden=8)
    state = attacker.init(jax.random.key(0))
    after, metrics = jax.jit(attacker.step)(state, jax.random.key(1), points)
    assert metrics[metric] == 1.0
    jax.tree.map(np.testing.assert_array_equal, state.params, after.params)
    assert np.isfinite(np.asarray(metrics["log_ratio_sd"]))


def test_best_of_n_is_the_best_and_more_draws_never_lose():
    _, target, points = setup()
    key = jax.random.key(3)
    scores = []
    for draws in (2, 8, 21):
        action = jax.jit(random(target, draws=draws).act)(None, key, first(points))
        every = jnp.stack([jax.random.normal(jax.random.fold_in(key, i), (CHANNELS,)) for i in range(draws)])
        rewards = jax.jit(target.rewards)(jax.tree.map(lambda x: x[:1], points), every[None])[0]
        np.testing.assert_array_equal(action, every[jnp.argmax(rewards)])
        scores.append(float(rewards.max()))
    assert scores == sorted(scores)


@pytest.mark.parametrize("make", [lambda o: grpo(o, batch=4, hidden=8), random, lambda o: random(o, draws=9)])
def test_contract(make):
    """Same key, same result; attackers under vmap are those that train alone; other rows do not matter."""
    _, target, points = setup()
    attacker = make(target)
    keys = jax.random.split(jax.random.key(7), 3)
    states = jax.vmap(attacker.init)(keys)
    step = jax.jit(jax.vmap(attacker.step, (0, 0, None)))
    after, _ = step(states, keys, points)
    alone = jax.jit(attacker.step)
    for i in range(3):
        own, _ = alone(attacker.init(keys[i]), keys[i], points)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, atol=1e-4), after, own)
    state = jax.tree.map(lambda x: x[0], after)
    act = jax.jit(jax.vmap(attacker.act, (None, 0, 0)))
    batch = act(state, jax.random.split(keys[0], 4), points)
    assert batch.shape == (4, CHANNELS) and np.isfinite(batch).all()
    other = jax.tree.map(lambda x: x.at[1:].multiply(0) if x.ndim > 1 else x, points)
    np.testing.assert_allclose(act(state, jax.random.split(keys[0], 4), other)[0], batch[0], atol=1e-5)


def learned(options, steps=60):
    """The last metrics, and the action on the first utterance, of a training on four."""
    _, target, points = setup()
    attacker = grpo(target, **{"batch": 4, "hidden": 16, "learning_rate": 3e-3, **options})

    @jax.jit
    def train(points):
        def body(state, key):
            return attacker.step(state, key, points)

        state, metrics = jax.lax.scan(
            body, attacker.init(jax.random.key(0)), jax.random.split(jax.random.key(1), steps)
        )
        return jax.tree.map(lambda m: m[-1], metrics), attacker.act(state, jax.random.key(2), first(points)), metrics

    return jax.device_get(train(points))


def test_a_policy_per_frame_learns_one_action_for_all_frames():
    last, action, metrics = learned({"per_frame": True})
    direction = np.asarray(first(setup()[2]).content[1]) * TARGET
    assert action.shape == (250, CHANNELS)
    cosine = action @ direction / np.linalg.norm(action, axis=1) / np.linalg.norm(direction)
    assert np.mean(cosine) > 0.5 and metrics["reward"][-10:].mean() > metrics["reward"][:10].mean()
    assert last["log_ratio_sd"] < 1


def test_a_divergence_holds_the_policy_back():
    free, held = (learned({"kl": kl})[0] for kl in (1e-6, 1.0))
    assert 0 <= held["kl"] < 0.3 * free["kl"] and held["reward"] < free["reward"]


def test_dr_grpo_leaves_the_scale_of_a_group():
    rewards = jnp.asarray([[1.0, 3.0], [1.0, 1.2], [1.0, np.nan]])
    advantages, _, _ = group_advantages(rewards, scale_rewards=False)
    np.testing.assert_allclose(advantages, [[-1, 1], [-0.1, 0.1], [0, 0]], atol=1e-6)


def test_more_draws_of_a_policy_never_lose():
    _, target, points = setup(1)
    rewards = []
    for draws in (1, 4, 12):
        attacker = grpo(target, batch=1, hidden=8, draws=draws)
        assert attacker.per_act.scores == (draws if draws > 1 else 0)

        @jax.jit
        def score(points, attacker=attacker):
            action = attacker.act(attacker.init(jax.random.key(4)), jax.random.key(5), first(points))
            return target.rewards(points, action[None, None])[0, 0]

        rewards.append(float(score(points)))
    assert rewards == sorted(rewards) and rewards[0] < rewards[-1]


def test_actions_of_samples_have_no_frames():
    from jaxhack.spaces import waveform

    with pytest.raises(ValueError, match="per_frame needs actions that have frames; those of waveform have none"):
        grpo(objective(predictor(), waveform()), per_frame=True)


def test_auto_pgd_looks_back_when_the_paper_does():
    """Checks of 100 steps, Croce and Hein, section 3.2."""
    from jaxhack.attackers.pgd import _checkpoints

    assert np.flatnonzero(_checkpoints(100)).tolist() == [22, 41, 57, 70, 80, 87, 93, 99]


@pytest.mark.parametrize(
    ("gains", "size_then", "best_then", "halved"),
    [
        (10, 1.0, 2.0, False),  # enough gains, a new best
        (7, 1.0, 2.0, True),  # too few gains
        (10, 1.0, 3.0, True),  # no new best at an unchanged step
        (10, 2.0, 3.0, False),  # nor one just after it was halved, which is no reason to halve again
    ],
)
def test_auto_pgd_halves_its_step(gains, size_then, best_then, halved):
    from jaxhack.attackers.geometry import Geometry
    from jaxhack.attackers.pgd import Search, _adaptive

    ground = Geometry((1,), jnp.float32(1), jnp.ones(1, bool), jnp.zeros, lambda a: a, jnp.sign)
    at, before, best, slope = (jnp.full(1, x) for x in (4.0, 2.0, 10.0, 1.0))
    score, three, one = jnp.float32(0.0), jnp.float32(3.0), jnp.float32(1.0)
    then = jnp.float32(size_then), jnp.float32(best_then)
    s = Search(at, before, slope, score, best, three, slope, one, jnp.int32(gains), jnp.int32(10), then)
    after = _adaptive(ground, s, slope, jnp.bool_(True))
    # From where it is, 3/4 of a step and 1/4 of the last move; from the best iterate, half a step and no last move.
    assert after.action == (10.5 if halved else 4.0 + 0.75 + 0.5)
    assert after.step_size == (0.5 if halved else 1.0)
    assert after.checked == (1.0, 3.0) and after.gains == after.steps == 0
    whole = _adaptive(ground, s._replace(before=at), slope, jnp.bool_(False))
    assert whole.action == 5.0, "the first step has no last move to go on with"
