"""Canonicalization of graphs from exporters and other tools."""
