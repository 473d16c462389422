"""Independent witnesses of whether speech got worse: most against a reference, some of the estimate alone."""

from jaxhack.measures.estoi import estoi, estoi_measure
from jaxhack.measures.models import (
    latent_encoder,
    matched_precision,
    no_reference,
    speaker_similarity,
    speech_bert_score,
)
from jaxhack.measures.panel import MEASURES, Kind, default_panel, evaluate, kinds, make_panel, rules
from jaxhack.measures.pesq import pesq_measure
from jaxhack.measures.si_sdr import si_sdr, si_sdr_measure
from jaxhack.measures.wer import normalised, wer_measure, word_error_rate

__all__ = [
    "MEASURES",
    "Kind",
    "default_panel",
    "estoi",
    "estoi_measure",
    "evaluate",
    "kinds",
    "latent_encoder",
    "make_panel",
    "matched_precision",
    "no_reference",
    "normalised",
    "pesq_measure",
    "rules",
    "si_sdr",
    "si_sdr_measure",
    "speaker_similarity",
    "speech_bert_score",
    "wer_measure",
    "word_error_rate",
]
