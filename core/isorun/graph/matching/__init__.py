"""Recognizing subgraphs, by structure and by numeric probes."""
