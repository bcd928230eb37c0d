"""Adapters for other libraries. Each module needs that library, which an extra of the same name installs."""
