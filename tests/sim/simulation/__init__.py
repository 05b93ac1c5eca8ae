"""One seed, one schedule: the real leases, batches and managers in a simulated world.

Real: coordinator and ledger, ``RoleEngines`` with manager and replica driver, ``BatchRunner``,
``consume_async``, registry. Simulated: time, threads, network, worker and engine processes, disk, sink.
``world.py`` says what holds, whatever happens; ``schedule.py`` plays one seed; ``simulate.py`` beside this
folder plays many.
"""
