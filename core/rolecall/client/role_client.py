"""For plugins: a client for a role of any job, by its gateway's URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolecall.interfaces.reward_adapter import ScoringClient


async def role_client(
    gateway_url: str, *, token: str | None = None, max_concurrency: int = 1024
) -> ScoringClient:
    """Return the running loop's client for the role behind ``http://host:port/{role}``.

    It asks the role's engines directly, as its gateway shows them and as the role's routing policy says,
    which has to be installed here. The same arguments give the same client; it is closed with the loop.
    Nothing is asked yet.
    """
    # Imported here: it takes a while, and plugins import this module while a job is planned.
    from rolecall.client.shared import shared_client

    return await shared_client(gateway_url, token=token, max_concurrency=max_concurrency)
