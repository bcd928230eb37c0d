"""Intel's OpenVINO, used directly."""
