"""The admission guard: the door between the world and one engine.

Requests go to the guard's address, the engine itself listens on loopback. The guard lets through what
asks an engine for work and nothing that commands it, counts what is inside, and is opened and closed
by the engine host through :class:`~rolecall.engines.admission.Admission`. It lives in the worker's
process and event loop, so that it needs no wire to the host and ends with it.

It decides nothing about when: that is the host's. It chooses no engine, retries nothing, and keeps no
request past its end.
"""
