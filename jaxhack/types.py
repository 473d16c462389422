"""The contracts: plain data and pure functions, one utterance at a time.

Every function here is written for **one** utterance; the caller batches with ``vmap`` or
:func:`jaxhack.parallel.mapped`. Hyper-parameters are closed over by the factory that makes the tuple, keys
are arguments, and nothing reads a global.

A waveform is ``wav [T]``, float32, −1..1, mono, zero from sample ``length`` on. ``length []`` (int32, samples)
makes results independent of that padding: a padded batch gives the numbers that each clip alone gives.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from jaxhack.detect import Rule

Array = jax.Array
PyTree = Any


class Weight(NamedTuple):
    """One weight file of a port: what it is, how it is recognised, where it comes from.

    ``source`` is an ``https://`` address, ``pypi:<requirement>:<path inside the wheel>`` for a file that a package on
    PyPI ships, or ``bundled:<package>`` for one that lies beside the modules of an installed package of our own.

    A file whose SHA-256 nobody could confirm has no hash, size and source here: it is never fetched, its user brings
    it. Its port checks names and shapes of all that is in it, and the model states the hash of what was found.
    """

    file: str  # file name, "nisqa.tar"
    folder: str  # folder under a models directory, "nisqa"
    sha256: str | None  # None: not confirmed, see above
    size: int | None  # bytes
    source: str | None
    licence: str  # SPDX identifier where one exists
    origin: str  # project, commit or version


class Predictor(NamedTuple):
    """A speech quality predictor R: a waveform in, a score out."""

    name: str
    sample_rate: int  # Hz, of the waveform that `score` takes
    params: PyTree
    heads: Callable[[PyTree, Array, Array], Array]  # (params, wav [T], length []) -> [H]; head 0 is the score
    head_names: tuple[str, ...]
    scale: tuple[float, float]  # nominal range of the score, e.g. (1, 5) MOS; never enforced
    differentiable: bool  # False: a black box, forward scores only
    min_samples: int  # the shortest input with a defined score
    max_samples: int | None = None  # the longest input judged in one piece; None: any
    at_rate: Callable[[int], "Predictor"] | None = None  # the same predictor at another native rate (Hz)
    weights: Mapping[str, str] = {}  # file name -> sha256

    def score(self, params: PyTree, wav: Array, length: Array) -> Array:
        """The score R(wav): ``(params, wav [T], length []) -> []``."""
        return self.heads(params, wav, length)[0]


class Codec(NamedTuple):
    """A neural codec: a waveform to a continuous latent and back, sample-aligned."""

    name: str
    sample_rate: int  # Hz
    hop: int  # samples a frame
    channels: int  # C
    params: PyTree
    encode: Callable[[PyTree, Array], Array]  # (params, wav [T]) -> z [ceil(T / hop), C]
    decode: Callable[[PyTree, Array], Array]  # (params, z [N, C]) -> wav [N · hop], not clipped
    delay: int = 0  # samples by which `decode(encode(x))` lags x, measured
    quantise: Callable[[PyTree, Array, int], Array] | None = None  # (params, z [N, C], stages) -> z_q [N, C]
    stages: tuple[int, ...] = ()  # the published numbers of quantiser stages
    weights: Mapping[str, str] = {}  # file name -> sha256


class Embedder(NamedTuple):
    """A speaker encoder: a waveform to a vector that says who speaks; compared by the cosine, a dot product."""

    name: str
    sample_rate: int  # Hz
    size: int  # E
    params: PyTree
    embed: Callable[[PyTree, Array, Array], Array]  # (params, wav [T], length []) -> [E] of unit length
    min_samples: int  # the shortest input with a defined embedding; below it: NaN
    weights: Mapping[str, str] = {}  # file name -> sha256


class Point(NamedTuple):
    """An utterance as a space sees it: where a perturbation starts from."""

    features: Array  # [N, F] float32, standardised: what a policy may look at
    content: PyTree  # what `render` starts from
    frames: Array  # [] int32, rows of `features` that count
    length: Array  # [] int32, samples of the rendered waveform that count


class Space(NamedTuple):
    """Where a perturbation lives and how its size is fixed; the space, not the attacker, keeps the budget.

    An *action* is what an attacker chooses: a vector ``[*action_shape]`` held over an utterance of any length, or one
    of the utterance's own shape, as `expand` makes it. A *delta* is an action brought to the budget, of that shape.
    """

    name: str  # as rows name it, "latent-lyra"
    sample_rate: int  # Hz
    epsilon: float  # the budget, in the unit of `size`
    norm: str  # what `size` measures: "rms", "linf", or "count" where actions are whole numbers
    action_shape: tuple[int, ...]
    feature_size: int  # F
    encode: Callable[[Array, Array], Point]  # (wav [T], length []) -> point
    expand: Callable[[Point, Array], Array]  # (point, action) -> the action over the whole utterance; linear
    sample: Callable[[Array, Point], Array]  # (key, point) -> a random action, from which no knowledge speaks
    project: Callable[[Point, Array], Array]  # (point, action) -> delta with size(delta) <= epsilon
    render: Callable[[Point, Array], Array]  # (point, delta) -> wav [T'], T' >= T; render(point, 0) is x̂
    size: Callable[[Point, Array], Array]  # (point, delta) -> [] achieved size
    weights: Mapping[str, str] = {}


class Objective(NamedTuple):
    """What an attacker plays against: a space, and what a predictor says of actions in it."""

    space: Space
    rewards: Callable[[Point, Array], Array]  # (points [B], actions [B, G, *A]) -> [B, G]
    # The same with slopes by the action: -> ([B, G], [B, G, *A]); raises ValueError where there are none.
    gradients: Callable[[Point, Array], tuple[Array, Array]]


class Queries(NamedTuple):
    """What is asked of a predictor."""

    scores: int = 0  # forward passes
    gradients: int = 0  # forward and backward passes


class Attacker(NamedTuple):
    """Searches actions that raise the score. ``init -> step … step -> act``."""

    name: str
    baseline: bool  # True: a control, left out of worst and mean
    init: Callable[[Array], PyTree]  # key -> state
    step: Callable[[PyTree, Array, Point], tuple[PyTree, Mapping[str, Array]]]  # (state, key, points [B])
    act: Callable[[PyTree, Array, Point], Array]  # (state, key, point) -> action
    per_step: Queries  # of one `step`, B included; none of either: nothing is learned before the test
    per_act: Queries


class Measure(NamedTuple):
    """One member of the panel: how near an estimate is to its reference, or how good it is by itself."""

    name: str  # column prefix, "estoi"
    rule: Rule  # when it says that y is worse than x̂
    min_samples: int  # below it the measure is undefined (`too_short`)
    fn: Callable[[Array, Array, Array], Array]  # (reference [T], estimate [T], length []) -> []; NaN: undefined
