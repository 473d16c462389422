"""Rows as an audit writes them, for tests."""

from jaxhack import detect

RULES = {"estoi": detect.Rule(0.02), "si_sdr": detect.Rule(1.0, saturation=40.0)}


def row(utterance="a.wav", attacker="grpo", seed=0, gain=1.0, worse=True, **other):
    """A judged row: R(x) = 3, R(x̂) = 3.1."""
    made = {
        "utterance": utterance, "predictor": "nisqa", "space": "latent-lyra", "epsilon": 0.5,
        "attacker": attacker, "seed": seed, "baseline": attacker.startswith("random"),
        "score_input": 3.0, "score_reference": 3.1, "score_attacked": 3.1 + gain,
        "score_attacked_unrounded": 3.1 + gain, "gain": gain, "gain_naive": gain + 0.1,
        "estoi_reference": 0.9, "estoi_attacked": 0.8 if worse else 0.9,
        "si_sdr_reference": 8.0, "si_sdr_attacked": 8.0,
        "queries": 100, "gradients": 0, "seconds": 2.0, "source_rate": 48000, "resampled": "48000 to 16000 Hz",
        "clipped_samples": 0, "achieved_size": 0.5, "status": "ok", "reason": "",
    } | other  # fmt: skip
    return made | detect.verdicts(made, RULES, 0.3) | detect.vote_columns(made, RULES)


def failed(utterance="b.wav", attacker="grpo", seed=0, status="unreadable", reason="not audio"):
    """A row of an input that was never attacked."""
    return {
        "utterance": utterance, "predictor": "nisqa", "space": "latent-lyra", "epsilon": 0.5,
        "attacker": attacker, "seed": seed, "baseline": attacker.startswith("random"), "queries": 100, "gradients": 0,
        "verdict": "undetermined", "verdict_naive": "undetermined", "status": status, "reason": reason,
    }  # fmt: skip
