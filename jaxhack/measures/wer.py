"""Word error rate between what a recogniser hears in y and what it hears in x; no ground truth is needed.

A recogniser's mistakes on x are taken for the truth, so that the rate says what changed, not what is wrong. It must
know the language: on speech that it does not follow, words change with any rounding. Where more than `FLOOR` of the
words change between x and x̂ already, the vote is void; where nothing is recognised in x, the rate is undefined.
"""

import hashlib
import unicodedata

import numpy as np
import soxr

from jaxhack.audio import QUALITY, pcm16
from jaxhack.detect import Rule
from jaxhack.types import Array, Measure, PyTree, Recogniser

NORMALISER = "lower case, punctuation off, white space"
FLOOR = 0.5  # of the words of x, lost in x̂ already


def normalised(text: str) -> list[str]:
    """Words in lower case; apostrophes vanish, other punctuation and symbols part words like white space."""
    text = "".join("" if c in "'’" else " " if unicodedata.category(c)[0] in "PS" else c for c in text.lower())
    return text.split()


def word_error_rate(reference: str, hypothesis: str) -> float:
    """Insertions, deletions and substitutions over the words of the reference, after :func:`normalised`.

    May exceed 1. Of an empty reference it is the number of words inserted, as there is nothing to divide by.
    """
    wanted, made = normalised(reference), normalised(hypothesis)
    costs = list(range(len(made) + 1))
    for i, word in enumerate(wanted, start=1):
        before, costs = costs, [i]
        for j, other in enumerate(made, start=1):
            costs.append(min(before[j] + 1, costs[-1] + 1, before[j - 1] + (word != other)))
    return costs[-1] / max(len(wanted), 1)


def wer_measure(recogniser: Recogniser, sample_rate: int, *, margin: float = 0.3) -> Measure:
    """WER for the panel; higher by more than `margin`, a value of ours, counts as degraded.

    Args:
      recogniser: what makes the transcripts.
      sample_rate: Hz, of the waveforms, which are rounded to 16 bit and resampled where the recogniser's differs.
      margin: in words per word of x's transcript. PocketSphinx needs as much: under two white noises, each 40 dB
        below the speech, its rates on one clip differ by 0.15 (standard deviation, 10 English clips), by more than
        0.1 on half of them and by more than 0.3 on one. A better recogniser may take less.

    Returns:
      A host measure. Transcripts are kept in its params, a mapping from the audio's hash to the text, so that the
      same audio is recognised once. Undefined where x's transcript is empty; 1 where only the estimate's is.
    """

    def transcript(known: PyTree, wav: Array) -> str:
        samples = pcm16(np.asarray(wav))
        key = hashlib.sha256(f"{sample_rate} Hz ".encode() + samples.tobytes()).hexdigest()
        if key not in known:
            if sample_rate != recogniser.sample_rate:
                samples = soxr.resample(samples, sample_rate, recogniser.sample_rate, quality=QUALITY)
            known[key] = recogniser.transcribe(samples)
        return known[key]

    def fn(params: PyTree, reference: Array, estimate: Array, length: Array) -> float:
        known = {} if params is None else params
        wanted = transcript(known, reference[: int(length)])
        if not normalised(wanted):
            raise ValueError(f"{recogniser.name} recognises nothing in the input")
        return word_error_rate(wanted, transcript(known, estimate[: int(length)]))

    about = {"recogniser": recogniser.name, **recogniser.about, "normaliser": NORMALISER}
    rule = Rule(margin, higher_is_better=False, floor=FLOOR)
    return Measure("wer", rule, 1, fn, host=True, about=about)
