"""What every attacker keeps in every space, on a codec and a predictor whose best attack is known.

Shapes are small: four utterances of at most 1008 samples, 63 frames of 8 channels.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from jaxhack import attackers, spaces
from jaxhack.objective import objective

pytestmark = [
    pytest.mark.standard_promotion,  # optax
    pytest.mark.quick_compilation,
    pytest.mark.usefixtures("one_device"),
]

LENGTHS = (1000, 800, 640, 1000)
SIZE = 1008  # samples of a padded utterance, whole frames of 16

SMALL = {  # options that make an attacker quick
    "grpo": {"batch": 4, "group": 8, "hidden": 8},
    "grpo-literal": {"batch": 4, "group": 8, "hidden": 8},
    "universal-grpo": {"batch": 4, "group": 8},
    "universal": {"batch": 4},
    "pgd": {"steps": 8, "restarts": 2},
    "apgd": {"steps": 12},
    "nes": {"queries": 40, "pairs": 4},
    "square": {"queries": 40},
    "codes-search": {"queries": 40, "candidates": 8},
    "random": {"draws": 16},
}
WHITE = {"pgd", "apgd", "universal"}
WHOLE = {"codes-search", "random"}  # move by whole numbers
REAL = set(SMALL) - {"codes-search"}


def space(name: str, epsilon: float | None = None):
    kind = spaces.KINDS[name]
    epsilon = kind.epsilon if epsilon is None else epsilon
    return kind.make(toys.codec() if kind.chain else toys.RATE, epsilon=epsilon)


def make(name: str, target):
    kind = attackers.random if name == "random" else attackers.KINDS[name].make
    return kind(target, **SMALL[name])


def clips(size: int = SIZE, lengths=LENGTHS):
    wav = np.zeros((len(lengths), size), np.float32)
    for i, n in enumerate(lengths):
        wav[i, :n] = toys.speechlike(n / toys.RATE, i)
    return jnp.asarray(wav), jnp.asarray(lengths, jnp.int32)


@cache
def points_in(name: str, size: int = SIZE):
    """On the host: what is not compiled is not dispatched operation by operation."""
    return jax.device_get(jax.jit(jax.vmap(space(name).encode))(*clips(size)))


def table(*spaces_of_all: str):
    """Attacker × space; where two share all that matters, one is tried with fewer of the other."""
    pairs = [(a, s) for a in SMALL for s in spaces_of_all if a not in ("codes-search", "grpo-literal")]
    pairs += [("pgd", "noise"), ("grpo-literal", "latent"), ("pgd", "quantised")]
    pairs += [("codes-search", "codes"), ("random", "codes")]
    return pytest.mark.parametrize(("name", "where"), pairs)


def size64(made, point, delta) -> float:
    """The achieved size of a delta in float64, from its definition."""
    d, n = np.asarray(delta, np.float64), int(point.length)
    if made.norm == "count":
        return float(np.count_nonzero(d))
    if made.norm == "linf":
        return np.abs(d).max()
    if made.name == "noise":
        return np.sqrt(np.sum(d**2) / np.sum(np.asarray(point.content, np.float64)[:n] ** 2))
    return np.sqrt(np.sum(d**2) / int(point.frames) / d.shape[1])


def pick(tree, i=0):
    return jax.tree.map(lambda x: x[i], tree)


def trained(attacker, points):
    """Two attackers after a step, ``[2]``."""

    @jax.jit
    def train(keys, points):
        states = jax.vmap(attacker.init)(keys)
        return jax.vmap(attacker.step, (0, 0, None))(states, keys, points)[0] if any(attacker.per_step) else states

    return jax.device_get(train(jax.random.split(jax.random.key(5), 2), points))


def test_the_table_is_complete():
    assert set(SMALL) == {*attackers.KINDS, "random"}


@table("latent", "waveform")
def test_attacker_in_space(name, where):
    made, points = space(where), points_in(where)
    attacker = make(name, objective(toys.predictor(), made))
    states = trained(attacker, points)
    keys = jax.random.split(jax.random.key(7), len(LENGTHS))
    traces = []

    def one(state, key, point):
        traces.append(None)
        delta = made.project(point, attacker.act(state, key, point))
        return delta, made.size(point, delta), made.render(point, delta)

    attack = jax.jit(jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None), axis_size=2))
    deltas, sizes, wavs = jax.device_get(attack(states, keys, points))
    for i, delta in enumerate(deltas.reshape(-1, *deltas.shape[2:])):
        achieved = size64(made, pick(points, i % len(LENGTHS)), delta)
        assert 0 < achieved <= made.epsilon * (1 + 1e-6)
        np.testing.assert_allclose(sizes.ravel()[i], achieved, rtol=1e-5)
    assert np.isfinite(deltas.astype(np.float64)).all() and np.isfinite(wavs).all()

    once = len(traces)
    again = jax.device_get(attack(states, keys, points))[0]
    np.testing.assert_array_equal(again, deltas, err_msg="the same key gave another action")
    attack(states, keys[::-1], pick(points, np.arange(4)[::-1]))
    assert len(traces) == once, "a second batch of the same shapes was traced again"

    alone, wide, same = jax.jit(one), points_in(where, SIZE + 160), deltas.shape[2]
    for seed, i in ((0, 1), (1, 0)):
        delta = np.asarray(alone(pick(states, seed), keys[i], pick(wide, i))[0])
        np.testing.assert_allclose(
            delta[:same], deltas[seed, i], atol=1e-5, err_msg="alone and padded, it is another action"
        )
        assert not delta[same:].any()


@table("latent")
def test_a_budget_of_zero_is_the_round_trip_to_the_bit(name, where):
    made, point = space(where, 0.0), pick(points_in(where))
    attacker = make(name, objective(toys.predictor(), made))

    @jax.jit
    def attack(point, factor):
        key = jax.random.key(3)
        delta = made.project(point, attacker.act(attacker.init(key), key, point))
        return made.render(point, delta), made.render(point, delta * factor)

    attacked, reference = attack(point, np.int32(0) if made.norm == "count" else np.float32(0))
    np.testing.assert_array_equal(attacked, reference)
    if where == "noise":
        np.testing.assert_array_equal(attacked, point.content)


@pytest.mark.parametrize("name", SMALL)
def test_black_boxes(name):
    target = objective(toys.predictor(differentiable=False), space("codes" if name == "codes-search" else "latent"))
    if name in WHITE:
        with pytest.raises(ValueError, match=r"^There is no gradient: toy is a black box\. Choose [^.]*\.$"):
            make(name, target)
    else:
        attacker = make(name, target)
        assert attacker.per_step.gradients == attacker.per_act.gradients == 0


@pytest.mark.parametrize("name", sorted(REAL - WHOLE))
def test_whole_numbers_are_refused_where_real_ones_are_moved(name):
    with pytest.raises(
        ValueError, match=r"^\S+ moves actions by real amounts, and those of codes-toy [^.]*\.$"
    ) as it:
        make(name, objective(toys.predictor(), space("codes")))
    assert str(it.value).startswith(name.removesuffix("-literal")) and "codes-search" in str(it.value)


@pytest.mark.parametrize("where", sorted(set(spaces.KINDS) - {"codes"}))
def test_codes_search_refuses_real_numbers(where):
    made = space(where)
    with pytest.raises(ValueError, match=rf"^codes-search needs .* those of {made.name} are real: [^.]*\.$"):
        make("codes-search", objective(toys.predictor(), made))


@pytest.mark.parametrize("name", SMALL)
def test_queries_are_counted_exactly(name):
    made = space("codes" if name == "codes-search" else "latent")
    target = objective(toys.predictor(), made)
    asked = {"scores": 0, "gradients": 0}

    def counted(kind, fn):
        def note(entry, shape):
            asked[kind] += int(np.prod(shape))

        def call(points, actions):  # an entry of the actions goes along, so that a vmapped call counts as many
            jax.debug.callback(partial(note, shape=actions.shape[:2]), actions.ravel()[0])
            return fn(points, actions)

        return call

    target = target._replace(
        rewards=counted("scores", target.rewards), gradients=counted("gradients", target.gradients)
    )
    attacker = make(name, target)
    points = points_in("codes" if name == "codes-search" else "latent")
    state = jax.jit(attacker.init)(jax.random.key(0))
    state, _ = jax.block_until_ready(jax.jit(attacker.step)(state, jax.random.key(1), points))
    jax.effects_barrier()
    assert asked == attacker.per_step._asdict()
    asked.update(scores=0, gradients=0)
    jax.block_until_ready(jax.jit(attacker.act)(state, jax.random.key(2), pick(points)))
    jax.effects_barrier()
    assert asked == attacker.per_act._asdict()


def best_gain(where: str, point) -> float:
    """The most that any action gains: the score is linear in the mean frame."""
    if where == "waveform":
        return 40 * 0.002 * np.abs(toys.TARGET).sum()
    reach = 40 / 2 * np.asarray(point.content[1]) * toys.TARGET  # the codec's gain is 2
    return 0.5 * np.sqrt(len(reach)) * np.linalg.norm(reach)


SOLVED = {  # options, training steps, and the share of the best gain to be reached in the space of that name
    ("pgd", "latent"): ({"steps": 50}, 0, 0.97),
    ("pgd", "waveform"): ({"steps": 10, "momentum": 0.5}, 0, 0.97),
    ("apgd", "latent"): ({"steps": 50}, 0, 0.99),
    ("apgd", "waveform"): ({"steps": 10}, 0, 0.97),
    ("nes", "latent"): ({"queries": 500, "held": True}, 0, 0.95),
    ("square", "latent"): ({"queries": 500, "held": True}, 0, 0.9),
    ("square", "waveform"): ({"queries": 500}, 0, 0.2),
    ("universal", "latent"): ({}, 60, 0.95),
    ("universal", "waveform"): ({}, 80, 0.95),
    ("universal-grpo", "latent"): ({"learning_rate": 0.03}, 80, 0.9),
}


@pytest.mark.parametrize(("name", "where"), SOLVED)
def test_the_best_attack_is_found(name, where):
    """On an utterance that training, if there is any, did not see."""
    options, steps, share = SOLVED[name, where]
    made, points = space(where), points_in(where)
    target = objective(toys.predictor(), made)
    attacker = attackers.KINDS[name].make(target, **options)
    unseen, seen = pick(points), pick(points, slice(1, None))

    @jax.jit
    def gain(seen, unseen):
        state = attacker.init(jax.random.key(0))
        if steps:
            keys = jax.random.split(jax.random.key(1), steps)
            state, _ = jax.lax.scan(lambda s, key: (attacker.step(s, key, seen)[0], None), state, keys)
        delta = made.project(unseen, attacker.act(state, jax.random.key(2), unseen))
        scores = target.rewards(pick(unseen, None), jnp.stack([delta, jnp.zeros_like(delta)])[None])[0]
        return scores[0] - scores[1]

    reached = float(gain(seen, unseen)) / best_gain(where, unseen)
    assert share < reached < 1.03  # rounding to 16 bits is not linear


def test_codes_search_finds_the_best_change():
    made = space("codes", 1)
    target = objective(toys.predictor(), made)
    point = pick(jax.device_get(jax.jit(jax.vmap(made.encode))(*clips(160, (160,)))))
    attacker = attackers.codes_search(target, queries=1 + 11 * 100, candidates=11)
    every = np.zeros((10, 2, 11, 10, 2), np.int32)
    for frame, stage, shift in np.ndindex(10, 2, 11):
        every[frame, stage, shift, frame, stage] = shift + 1
    rewards = jax.jit(target.rewards)
    scores = rewards(pick(point, None), every.reshape(1, -1, 10, 2))[0]
    found = jax.jit(attacker.act)(None, jax.random.key(0), point)
    assert np.count_nonzero(found) == 1
    np.testing.assert_allclose(rewards(pick(point, None), found[None, None])[0, 0], scores.max(), atol=1e-5)
    more = attackers.codes_search(objective(toys.predictor(), space("codes", 4)), queries=1 + 11 * 100, candidates=11)
    four = jax.jit(more.act)(None, jax.random.key(0), point)
    assert 1 < np.count_nonzero(four) <= 4
    assert rewards(pick(point, None), found[None, None])[0, 0] < scores.max() + 1e-5
