"""Where a perturbation lives and how its size is fixed."""

from jaxhack.spaces.latent import Statistics, latent, latent_statistics

__all__ = ["Statistics", "latent", "latent_statistics"]
