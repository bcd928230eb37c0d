"""A spec on the machines of a Ray cluster."""
