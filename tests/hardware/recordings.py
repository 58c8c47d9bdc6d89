"""What a GPU answered: whole recordings, which stay outside of the repository, and the fixtures made from them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).with_name("fixtures")


@dataclass
class Recording:
    """Answers to many cases.

    Attributes:
        facts: Date, GPU, driver, compiler.
        outputs: By case, the bytes of each output buffer.
        failures: By case, why there is no answer.
        unstable: Cases whose second run gave another answer.
    """

    facts: dict[str, Any] = field(default_factory=dict)  # Any: JSON values
    outputs: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    unstable: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it."""
        sizes = {name: [len(part) for part in parts] for name, parts in self.outputs.items()}
        header = {
            "facts": self.facts,
            "sizes": sizes,
            "failures": self.failures,
            "unstable": self.unstable,
        }
        data = b"".join(part for parts in self.outputs.values() for part in parts)
        _write(path, header, data)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote."""
        header, data = _read(path)
        outputs, at = {}, 0
        for name, sizes in header["sizes"].items():
            parts = []
            for size in sizes:
                parts.append(data[at : at + size])
                at += size
            outputs[name] = tuple(parts)
        return cls(header["facts"], outputs, header["failures"], header["unstable"])

    def join(self, other: Recording) -> None:
        """Take another one's answers too."""
        self.facts = self.facts or other.facts
        self.outputs.update(other.outputs)
        self.failures.update(other.failures)
        self.unstable += other.unstable


@dataclass(frozen=True, slots=True)
class Kept:
    """As much of an output buffer as the repository keeps.

    Attributes:
        size: Bytes.
        digest: Of all of them.
        head: The first of them.
    """

    size: int
    digest: bytes
    head: bytes


def keep(data: bytes, head_bytes: int) -> Kept:
    """Cut an output down."""
    return Kept(len(data), digest(data), data[:head_bytes])


def digest(data: bytes) -> bytes:
    """Eight bytes that tell two outputs apart."""
    return hashlib.blake2b(data, digest_size=8).digest()


def save_fixture(path: Path, facts: dict[str, Any], kept: dict[str, tuple[Kept, ...]]) -> None:
    """Write a fixture."""
    header = {
        "facts": facts,
        "cases": {
            name: [[part.size, part.digest.hex(), len(part.head)] for part in parts]
            for name, parts in kept.items()
        },
    }
    _write(path, header, b"".join(part.head for parts in kept.values() for part in parts))


def load_fixture(path: Path) -> tuple[dict[str, Any], dict[str, tuple[Kept, ...]]]:
    """Read what `save_fixture` wrote: facts, and what is kept by case."""
    header, data = _read(path)
    kept, at = {}, 0
    for name, parts in header["cases"].items():
        found = []
        for size, code, length in parts:
            found.append(Kept(size, bytes.fromhex(code), data[at : at + length]))
            at += length
        kept[name] = tuple(found)
    return header["facts"], kept


def _write(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header, separators=(",", ":")).encode()
    np.savez_compressed(
        path, header=np.frombuffer(text, np.uint8), data=np.frombuffer(data, np.uint8)
    )


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    with np.load(path) as file:
        return json.loads(file["header"].tobytes()), file["data"].tobytes()
