"""Sizes of the experiment: one that two cores finish in hours, the paper's, and one that shows that it works."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Attack(NamedTuple):
    """A fresh attack, trained and tested on every defence by itself."""

    space: str
    attacker: str
    codec: str | None = None
    options: Mapping[str, Any] = {}
    met: bool = True  # by the loop over all spaces, in training


class Loop(NamedTuple):
    """Where the pairs come from that a predictor is trained on, and how."""

    codecs: tuple[str, ...] = ()
    attackers: tuple[str, ...] = ()  # with their spaces; none of pairs that no detector looks at
    recipe: Mapping[str, Any] = {}  # beside the preset's
    draws: int | None = None  # attackers, or pairs of an utterance, of each source; None: the preset's `seeds`


class Preset(NamedTuple):
    """An experiment."""

    name: str
    predictor: str
    defences: Mapping[str, Loop | str | None]  # a loop; a name with {} for the predictor's; None: as it is
    attacks: Mapping[str, Attack]
    seeds: tuple[int, ...]
    recipe: Mapping[str, Any]
    sizes: Mapping[str, Any]  # of every attack
    in_loop: Mapping[str, Mapping[str, Any]]  # options of attackers inside a loop
    seconds: tuple[float, float] = (0.0, 30.0)  # recordings between these
    limit: int | None = None  # recordings of each list
    registered: bool = False  # whether PREREGISTRATION.md is about it

    @property
    def runs(self) -> list[str]:
        """Every defence with every seed."""
        return [f"{defence}-{seed}" for defence in self.defences for seed in self.seeds]


UNDEFENDED, SINGLE, MULTI, RANDOM = "undefended", "loop-single", "loop-multi", "random-pairs"


def _loops(codec: str, codecs: tuple[str, ...], draws: int | None, blind: int | None) -> dict[str, Loop]:
    """What is trained, whatever the size: the loop in one space and in several, its variants, the baselines.

    Args:
      codec: of the one space.
      codecs: of the latents among the several.
      draws: attackers of each attack in a loop; None: the preset's.
      blind: pairs of an utterance that the baselines get in a round; None: as many as attackers.
    """
    single, multi = ("latent/grpo",), ("latent/grpo", "waveform/pgd")
    return {
        SINGLE: Loop((codec,), single, {}, draws),
        f"{SINGLE}-consistency": Loop((codec,), single, {"consistency": 1.0}, draws),
        f"{SINGLE}-gradient-norm": Loop((codec,), single, {"gradient_norm": 0.002}, draws),
        MULTI: Loop(codecs, multi, {}, draws),
        "noise-pairs": Loop((), (), {"source": "noise"}, blind),
        "pgd-pairs": Loop((), (), {"source": "pgd"}, blind),
        RANDOM: Loop((codec,), (), {"source": "random"}, blind),
    }


SMALL = Preset(
    name="small",
    predictor="nisqa",
    defences={
        UNDEFENDED: None,
        **_loops("lyra", ("lyra", "mini"), draws=2, blind=3),
        "smoothed-waveform": "smoothed({},waveform=0.01,draws=5)",
        "smoothed-latent": "smoothed({},lyra=0.5,draws=3)",
        "denoised": "denoised({},lyra)",
    },
    attacks={
        "lyra-grpo": Attack("latent", "grpo", "lyra"),
        "mini-grpo": Attack("latent", "grpo", "mini"),
        "waveform-pgd": Attack("waveform", "pgd", options={"steps": 20}),
        "lyra-pgd": Attack("latent", "pgd", "lyra", {"steps": 10}, met=False),
    },
    seeds=(0, 1),
    recipe={"rounds": 2, "fit_steps": 200, "fit_batch": 4, "fit_seconds": 2.5, "learning_rate": 3e-4},
    sizes={"profile": "standard", "seeds": 1, "steps": 60, "batch": 4, "group": 4, "crop_seconds": 2.0},
    in_loop={"pgd": {"steps": 10}},
    seconds=(2.2, 3.6),
    registered=True,
)

# Needs the weights of SSL-MOS, EnCodec and DAC, BVCC, and an accelerator; nobody has run it.
PAPER = Preset(
    name="paper",
    predictor="ssl-mos",
    defences={
        UNDEFENDED: None,
        **_loops("encodec-24khz", ("encodec-24khz", "dac-24khz"), draws=None, blind=None),
        "loop-prefer-input": Loop(("encodec-24khz",), ("latent/grpo",), {"prefer_input": True}),
    },
    attacks={
        "encodec-grpo": Attack("latent", "grpo", "encodec-24khz"),
        "dac-grpo": Attack("latent", "grpo", "dac-24khz"),
        "waveform-pgd": Attack("waveform", "pgd", options={"steps": 50}),
        "encodec-pgd": Attack("latent", "pgd", "encodec-24khz", {"steps": 50}, met=False),
    },
    seeds=(0, 1, 2),
    recipe={},
    sizes={"profile": "paper"},
    in_loop={"pgd": {"steps": 10}},
)

TINY = SMALL._replace(
    name="tiny",
    defences={
        UNDEFENDED: None,
        MULTI: Loop((), ("waveform/pgd",)),
        RANDOM: Loop(("mini",), (), {"source": "random"}),
    },
    attacks={"waveform-pgd": Attack("waveform", "pgd", options={"steps": 1})},
    seeds=(0,),
    recipe={"rounds": 1, "fit_steps": 1, "fit_batch": 2, "fit_seconds": 1.0},
    in_loop={"pgd": {"steps": 1}},
    limit=2,
)

PRESETS = {preset.name: preset for preset in (SMALL, PAPER, TINY)}
