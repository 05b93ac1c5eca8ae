"""From the ``source`` of a model in the job file to a path on this node."""

from rolecall.model_sources.fetch import fetch_model
from rolecall.model_sources.source import HubSource, LocalSource, ModelSource, PyPISource, parse_source

__all__ = ["HubSource", "LocalSource", "ModelSource", "PyPISource", "fetch_model", "parse_source"]
