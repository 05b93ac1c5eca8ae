"""Where requests may go now: snapshots, their revisions, and the registry that hands them on."""
