"""Leases on shared devices, batches and the gate between scored and committed."""
