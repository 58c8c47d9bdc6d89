"""Names of implementations, and which of the peers can be imported here; imports none."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

OURS = "mlagen"


@dataclass(frozen=True, slots=True)
class PeerName:
    """One other implementation of attention.

    Attributes:
        title: What tables call it.
        module: What is imported.
        distribution: What is installed.
    """

    title: str
    module: str
    distribution: str


PEER_NAMES: dict[str, PeerName] = {
    "torch_cudnn": PeerName("torch SDPA (cuDNN)", "torch", "torch"),
    "flex": PeerName("FlexAttention", "torch", "torch"),
    "fa4": PeerName("flash-attn-4", "flash_attn.cute", "flash-attn-4"),
    "flashinfer": PeerName("FlashInfer", "flashinfer", "flashinfer-python"),
}
# What decides about their speed besides.
_BENEATH = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cutlass-dsl", "triton")


def installed_peers() -> list[str]:
    """Those that seem importable."""
    return [name for name, peer in PEER_NAMES.items() if _can_be_found(peer.module)]


def _can_be_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a parent is missing, or is no package
        return False


def peer_versions() -> dict[str, str]:
    """Versions of the distributions behind peers that are installed, but for torch."""
    distributions = [peer.distribution for peer in PEER_NAMES.values()]
    found = {}
    for name in dict.fromkeys((*distributions, *_BENEATH)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found.pop("torch", None)  # named on its own: it times us, too
    return found
