"""The contract of each plugin kind, one file a kind. Plugins import them from ``rolecall.api``."""
