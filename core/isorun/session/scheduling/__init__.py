"""Concurrent requests: calls wait in one queue, from which lanes take batches."""
