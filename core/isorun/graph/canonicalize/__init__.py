"""One spelling for what exporters and other tools write in several."""
