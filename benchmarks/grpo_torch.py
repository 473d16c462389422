"""One GRPO step as it is usually written: eager PyTorch on whole batches, with the official NISQA model.

Everything is equal to the JAX side: the decoder has Lyra's layers and weights, the policy starts from the same
parameters. NISQA's spectrogram is computed in PyTorch for the whole batch: the package's own reads every clip from a
file, and going that way would be slower still.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import official

Tensor = torch.Tensor
PCM = 32768


def tensor(x: Any) -> Tensor:
    """An array, copied."""
    return torch.tensor(np.asarray(x, np.float32))


class Decoder:
    """Lyra's decoder on a batch: latents ``[n, N, 64]`` -> waveforms ``[n, N · 320]``."""

    def __init__(self, params: Mapping[str, Mapping[str, Any]]):
        self.params = {scope: {k: tensor(v) for k, v in leaves.items()} for scope, leaves in params.items()}

    def __call__(self, z: Tensor) -> Tensor:
        """See the class."""
        x = self.conv(z.transpose(1, 2), "bottleneck_2.simpleconv")
        for stage, groups in enumerate((4, 2)):
            parts = F.leaky_relu(x, 0.3).chunk(groups, 1)
            x = torch.cat([self.up(part, f"decoder_{stage}.simple_g{g}", 2) for g, part in enumerate(parts)], 1)
            x = self.residuals(x, f"decoder_{stage}")
        x = self.residuals(self.up(F.leaky_relu(x, 0.3), "decoder_2.simple", 5), "decoder_2")
        return self.up(F.leaky_relu(x, 0.3), "last_layer", 16)[:, 0]

    def residuals(self, x: Tensor, scope: str) -> Tensor:
        for unit in range(3):
            name, dilation = f"{scope}.resnet_{unit}", 3**unit
            depthwise = self.params[f"{name}adepthwise_conv"]
            h = F.pad(F.leaky_relu(x, 0.3), (2 * dilation, 0))
            h = F.conv1d(h, depthwise["kernel"].T[:, None], depthwise["bias"], dilation=dilation, groups=x.shape[1])
            h = self.conv(h, f"{name}apointwise_conv")
            x = x + self.conv(F.leaky_relu(h, 0.3), f"{name}bconv")
        return x

    def conv(self, x: Tensor, scope: str) -> Tensor:
        """Causal; the kernel is ``[groups, taps, in, out]``."""
        kernel, bias = self.params[scope]["kernel"], self.params[scope]["bias"]
        groups, taps, size, _ = kernel.shape
        weight = kernel.permute(0, 3, 2, 1).reshape(-1, size, taps)
        return F.conv1d(F.pad(x, (taps - 1, 0)), weight, bias, groups=groups)

    def up(self, x: Tensor, scope: str, stride: int) -> Tensor:
        """Causal and transposed; the kernel is ``[taps, in, stride · out]``."""
        kernel, bias = self.params[scope]["kernel"], self.params[scope]["bias"]
        taps, size, _ = kernel.shape
        weight = kernel.reshape(taps, size, stride, -1).permute(1, 3, 0, 2).reshape(size, -1, taps * stride)
        return F.conv_transpose1d(x, weight, bias, stride=stride)[..., : x.shape[2] * stride]


class Nisqa:
    """The official model on waveforms ``[n, T]`` at 16 kHz of one length: scores ``[n]``."""

    def __init__(self, checkpoint: Path):
        _, self.model, self.args = official.nisqa_model(checkpoint)
        fmax, n_fft, mels = (self.args[f"ms_{k}"] for k in ("fmax", "n_fft", "n_mels"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Empty filters")  # the bands above the Nyquist frequency
            bank = librosa.filters.mel(sr=16000, n_fft=n_fft, n_mels=mels, fmax=fmax)
        self.bank = tensor(bank)

    def __call__(self, wav: Tensor) -> Tensor:
        """See the class."""
        window = torch.hann_window(320)
        spectrum = torch.stft(wav, self.args["ms_n_fft"], 160, 320, window, pad_mode="reflect", return_complex=True)
        level = 20 * torch.log10(torch.clamp(self.bank @ spectrum.abs(), min=1e-4))
        level = torch.maximum(level, level.amax((1, 2), keepdim=True) - 80)
        cut = level.unfold(2, self.args["ms_seg_length"], self.args["ms_seg_hop_length"])
        cut = cut.transpose(1, 2)[:, :, None]
        return self.model(cut, torch.full((len(cut),), cut.shape[1]))[:, 0]


class Policy(torch.nn.Module):
    """Four 1-D convolutions over frames, pooled: features ``[B, N, F]`` -> mean of RMS 1 and log σ."""

    def __init__(self, params: Mapping[str, Any]):
        super().__init__()
        self.layers = torch.nn.ModuleList()
        for layer in range(4):
            kernel = tensor(params[f"Dense_{layer}"]["kernel"])
            conv = torch.nn.Conv1d(len(kernel) // 3, kernel.shape[1], 3, padding=1)
            conv.weight.data = kernel.reshape(3, -1, kernel.shape[1]).permute(2, 1, 0).contiguous()
            conv.bias.data = tensor(params[f"Dense_{layer}"]["bias"])
            self.layers.append(conv)
        self.log_sigma = torch.nn.Parameter(tensor(params["log_sigma"]))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        x = features.transpose(1, 2)
        for layer in self.layers[:3]:
            x = F.gelu(layer(x), approximate="tanh")
        mean = self.layers[3](x).mean(2)
        return mean / torch.sqrt(mean.square().mean(1, True) + 1e-12), self.log_sigma.clamp(-5, 2)


def advantages(rewards: Tensor, eta: float = 1e-4) -> Tensor:
    """Group-normalised ``[B, G]``."""
    return (rewards - rewards.mean(1, True)) / (rewards.std(1, correction=0, keepdim=True) + eta)


class Plain:
    """Decoder, predictor, policy and optimiser of one attacker, and its step."""

    def __init__(self, decoder: Mapping, checkpoint: Path, policy: Mapping, epsilon: float):
        self.decode, self.score, self.policy, self.epsilon = (
            Decoder(decoder),
            Nisqa(checkpoint),
            Policy(policy),
            epsilon,
        )
        self.optimiser = torch.optim.Adam(self.policy.parameters(), 1e-3)

    def render(self, z: Tensor, scale: Tensor, actions: Tensor) -> Tensor:
        """``z [B, N, C], scale [B, C], actions [B, G, C]`` -> waveforms as saved, ``[B, G, T]``."""
        delta = self.epsilon * actions / actions.square().mean(-1, True).sqrt()
        moved = z[:, None] + (delta * scale[:, None])[:, :, None]
        wav = self.decode(moved.flatten(0, 1)).unflatten(0, actions.shape[:2])
        return torch.clamp(torch.round(wav * PCM), -PCM, PCM - 1) / PCM

    def step(self, features: Tensor, z: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
        """One step of two inner epochs; ``noise [B, G, C]`` makes the draws. Returns the rewards ``[B, G]``."""
        with torch.no_grad():
            mean, log_sigma = self.policy(features)
            actions = mean[:, None] + log_sigma.exp() * noise
            rewards = self.score(self.render(z, scale, actions).flatten(0, 1)).unflatten(0, noise.shape[:2])
            gain, old = advantages(rewards), self.log_prob(features, actions)
        for _ in range(2):
            ratio = torch.exp(torch.clamp(self.log_prob(features, actions) - old, -10, 10))
            loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
        return rewards

    def log_prob(self, features: Tensor, actions: Tensor) -> Tensor:
        mean, log_sigma = self.policy(features)
        return torch.sum(-0.5 * ((actions - mean[:, None]) * torch.exp(-log_sigma)).square() - log_sigma, -1)
