"""GenRM: a generative reward model, an LLM judge that reads a sample and writes a verdict."""

from rolecall.api import Role, hookimpl

from .role import GenRMRole


@hookimpl
def rolecall_role() -> type[Role]:
    return GenRMRole
