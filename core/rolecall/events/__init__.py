"""What happened, as values, for observers and the event log."""
