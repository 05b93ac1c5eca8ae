"""Names in the environment of processes by which a job's are told from all others."""

from __future__ import annotations

RUN_DIR_VARIABLE = "ROLECALL_RUN_DIR"
"""Run folder of the job's process; set for every process of a job, so that none can be overlooked."""
