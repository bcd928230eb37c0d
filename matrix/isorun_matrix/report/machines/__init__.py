"""The machines of a run side by side."""
