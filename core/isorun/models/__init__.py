"""Models on their way to a backend: files, checkpoints, the hub, tokenizers, validation of feeds."""
