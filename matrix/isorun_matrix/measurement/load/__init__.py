"""Requests that arrive whether or not earlier ones are answered: rates and latencies under load."""
