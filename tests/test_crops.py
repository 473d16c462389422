import jax.numpy as jnp
import numpy as np
import pytest

from jaxhack.crops import Crops, batches, windows
from jaxhack.training import _indices, host_step_size
from jaxhack.types import Point


@pytest.mark.parametrize(
    "samples,starts", [(5, [0]), (10, [0]), (11, [0, 1]), (20, [0, 10]), (25, [0, 10, 15]), (30, [0, 10, 20])]
)
def test_windows_cover_a_clip_and_end_with_it(samples, starts):
    wav = np.arange(samples)
    assert [int(w[0]) for w in windows(wav, 10)] == starts
    assert all(len(w) == min(samples, 10) for w in windows(wav, 10))
    assert {int(s) for w in windows(wav, 10) for s in w} == set(range(samples))


def test_batches_are_full_and_say_what_is_empty():
    made = list(batches([np.ones(25, np.float32), np.full(4, 2.0, np.float32)], 10, batch=3))
    assert [length.tolist() for _, length in made] == [[10, 10, 10], [4, 0, 0]]
    np.testing.assert_array_equal(made[1][0][0], [2, 2, 2, 2, 0, 0, 0, 0, 0, 0])
    assert list(batches([], 10)) == []


def test_points_come_back_by_number_and_without_the_filling(tmp_path):
    def encode(wav, length):
        frames = length // 2
        return Point(wav.reshape(*wav.shape[:-1], 5, 2), (wav * 2, length), frames, length)

    clips = [np.full(n, i, np.float32) for i, n in enumerate((10, 25, 7))]
    store = Crops(tmp_path / "new").fill(encode, batches(clips, 10, batch=4))
    assert store.size == 5  # 1 + 3 + 1
    point = store.take(np.array([[4, 0], [1, 4]]))
    assert point.features.shape == (2, 2, 5, 2)
    assert point.length.tolist() == [[7, 10], [10, 7]]
    np.testing.assert_array_equal(point.content[0][0, 0], [4, 4, 4, 4, 4, 4, 4, 0, 0, 0])
    assert isinstance(jnp.asarray(point.frames), jnp.ndarray) and point.frames.tolist() == [[3, 5], [5, 3]]


def test_an_attackers_batches_do_not_depend_on_the_others():
    both, alone = (_indices(3, k, range(4, 9), 6, 20) for k in (2, 1))
    assert both.shape == (5, 2, 6)
    np.testing.assert_array_equal(both[:, :1], alone)
    np.testing.assert_array_equal(both[2:], _indices(3, 2, range(6, 9), 6, 20))
    assert all(len(set(row)) == 6 for step in both for row in step)  # no crop twice in a batch
    assert _indices(0, 1, range(1), 8, 3).max() < 3  # unless there are too few


@pytest.mark.parametrize("steps,size", [(1, 1), (4, 4), (2000, 5), (12, 4), (7, 1), (300, 5)])
def test_host_steps_divide_the_steps(steps, size):
    assert host_step_size(steps) == size
