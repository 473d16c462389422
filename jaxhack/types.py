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
import jax.numpy as jnp
import numpy as np

from jaxhack.detect import Rule

Array = jax.Array
PyTree = Any


class Unsuited(ValueError):
    """An attacker, a space, a codec and a predictor that cannot work together, whatever their options."""


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
    trainable: PyTree = True  # bools, a prefix of `params`: what training may move, not the codec of a defence

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
    codes: Callable[[PyTree, Array, int], Array] | None = None  # (params, z [N, C], stages) -> [N, stages] int32
    dequantise: Callable[[PyTree, Array], Array] | None = None  # (params, codes [N, S]) -> z_q [N, D], D <= C
    codebook_size: int = 0  # entries of a stage's codebook
    stages: tuple[int, ...] = ()  # the published numbers of quantiser stages; none: no quantiser
    weights: Mapping[str, str] = {}  # file name -> sha256

    def quantise(self, params: PyTree, z: Array, stages: int) -> Array:
        """Latent ``z [N, C]`` as the receiver sees it: ``[N, C]``; the gradient passes straight through.

        Channels that the codes do not cover pass untouched, and frames of zeros after the last other one stay zero:
        they are padding.

        Raises:
          ValueError: the codec has no quantiser.
        """
        if self.codes is None or self.dequantise is None:
            raise Unsuited(f"{self.name} has no quantiser: attack its continuous latent, or take another codec.")
        z_q = self.dequantise(params, self.codes(params, z, stages))
        z_q = jnp.concatenate([z_q, z[:, z_q.shape[1] :]], axis=1)
        last = jnp.max(jnp.where(jnp.any(z != 0, axis=1), jnp.arange(z.shape[0]), -1))
        z_q = jnp.where((jnp.arange(z.shape[0]) <= last)[:, None], z_q, 0.0)
        return (z - jax.lax.stop_gradient(z)) + jax.lax.stop_gradient(z_q)  # z − z is exactly 0


class Embedder(NamedTuple):
    """A speaker encoder: a waveform to a vector that says who speaks; compared by the cosine, a dot product."""

    name: str
    sample_rate: int  # Hz
    size: int  # E
    params: PyTree
    embed: Callable[[PyTree, Array, Array], Array]  # (params, wav [T], length []) -> [E] of unit length
    min_samples: int  # the shortest input with a defined embedding; below it: NaN
    weights: Mapping[str, str] = {}  # file name -> sha256


class Encoder(NamedTuple):
    """A frame encoder: a waveform to a sequence of feature vectors; compared by their cosines."""

    name: str
    sample_rate: int  # Hz
    size: int  # D
    params: PyTree
    features: Callable[[PyTree, Array, Array], tuple[Array, Array]]  # (params, wav [T], length []) -> [N, D], frames
    min_samples: int  # the shortest input with a frame
    weights: Mapping[str, str] = {}  # file name -> sha256


class Recogniser(NamedTuple):
    """A speech recogniser: a waveform to words, on the host. The same waveform gives the same words."""

    name: str
    sample_rate: int  # Hz
    transcribe: Callable[[np.ndarray], str]  # wav [T] int16 -> text; "" where nothing is recognised
    about: Mapping[str, Any]  # model, version, decoding: what else the words depend on; JSON-able


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
    levels: int = 0  # values that an entry of an action takes, where they are whole numbers; 0 changes nothing
    weights: Mapping[str, str] = {}


class Objective(NamedTuple):
    """What an attacker plays against: a space, and what a predictor says of actions in it."""

    space: Space
    rewards: Callable[[Point, Array], Array]  # (points [B], actions [B, G, *A]) -> [B, G]
    # The same with slopes by the action: -> ([B, G], [B, G, *A]); raises ValueError where there are none.
    gradients: Callable[[Point, Array], tuple[Array, Array]]
    blind: str = ""  # why there are no gradients, one sentence; empty where there are


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
    """One member of the panel: how near an estimate is to its reference, or how good it is by itself.

    A *host* measure is no JAX function: its `fn` takes unpadded NumPy waveforms, its params are the run's transcripts
    (a mapping from an audio hash to text, stored with the run), and it raises a ValueError where it is undefined.
    """

    name: str  # column prefix, "estoi"
    rule: Rule  # when it says that y is worse than x̂
    min_samples: int  # below it the measure is undefined (`too_short`)
    fn: Callable[[PyTree, Any, Any, Any], Any]  # (params, reference [T], estimate [T], length []) -> []; or NaN
    params: PyTree = None  # arrays, never constants of a compiled program
    host: bool = False
    about: Mapping[str, Any] = {}  # what else defines it: model, weights, version; JSON-able
