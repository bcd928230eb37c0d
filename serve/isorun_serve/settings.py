"""What a server allows, and what it asks of its clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The limits of a server. Requests that exceed one are rejected.

    Attributes:
        max_body: the maximum size of a request in bytes.
        max_texts: the maximum number of texts of a request.
        max_characters: the maximum length of a text in characters, before truncation.
        max_tokens: the maximum number of tokens of a request, after truncation.
        max_requests: the maximum number of requests at once, those that wait included.
        timeout: the maximum time in seconds from the first byte of a request to its answer; a client may ask for less.
        body_timeout: the maximum time in seconds in which a client sends its request.
        auto_truncate: cut texts that are longer than the model reads, where the client does not say; otherwise they are
            errors.
        api_keys: a client must have one of them; empty for none.
        cors_origins: the web pages that may call the server, such as ``https://example.org``.
        warmup: compile what requests need before the first one.
        measure: before that, measure how requests best share this machine, where the cache does not have it.
    """

    max_body: int = 8 * 2**20
    max_texts: int = 2048
    max_characters: int = 1_000_000
    max_tokens: int = 300_000
    max_requests: int = 1024
    timeout: float = 60.0
    body_timeout: float = 15.0
    auto_truncate: bool = False
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    warmup: bool = True
    measure: bool = True
