"""tract, an inference engine in Rust, as an isorun backend."""
