"""Pools and their names: one reversible, dot-free encoding of (model, version).

Envoy cuts statistics at dots and turns colons into underscores, so a cluster name holds neither:
letters, digits and "-" stay, every other byte of the UTF-8 text becomes "_XX" in hexadecimal.
An underscore is thus always followed by two hexadecimal digits, which leaves "__" free to part
the model from the version.
"""

import re
from dataclasses import dataclass

_SEPARATOR = "__"
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")
_TOKEN = re.compile(rb"[A-Za-z0-9-]|_[0-9A-F]{2}")


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """The engines that serve one version of one model. An unstated version is the empty string."""

    model: str
    version: str = ""

    @property
    def cluster(self) -> str:
        """The pool's Envoy cluster name."""
        return cluster_name(self)


def encode_name(text: str) -> str:
    """Return the dot-free form of any text; equal forms mean equal texts."""
    return "".join(chr(byte) if byte in _PLAIN else f"_{byte:02X}" for byte in text.encode())


def decode_name(encoded: str) -> str:
    """Return the text whose dot-free form this is. Raise ValueError when there is none."""
    raw = encoded.encode()
    tokens = _TOKEN.findall(raw)
    if b"".join(tokens) != raw:
        raise ValueError(f"{encoded!r} is not an encoded name")
    text = bytes(token[0] if len(token) == 1 else int(token[1:], 16) for token in tokens).decode()
    if encode_name(text) != encoded:
        raise ValueError(f"{encoded!r} is not an encoded name")
    return text


def cluster_name(pool: Pool) -> str:
    """Return the Envoy cluster name of a pool, e.g. "acme_2Ffox_2E5-7B__v1"."""
    if not pool.version:
        return encode_name(pool.model)
    return f"{encode_name(pool.model)}{_SEPARATOR}{encode_name(pool.version)}"


def parse_cluster_name(name: str) -> Pool:
    """Return the pool of a cluster name. Raise ValueError when it names none."""
    model, separator, version = name.partition(_SEPARATOR)
    if separator and not version:
        raise ValueError(f"{name!r} ends where a version should stand")
    return Pool(decode_name(model), decode_name(version))
