"""Adapters to training loops that others maintain: slime, verl, TRL.

A loop keeps its batches, its samples and its optimiser; from a rolecall job it gets rewards and, where it has
a hook for that, samples. Each module has exactly the functions that its loop looks for, with the loop's own
signature, and the version that signature was read from. A loop's own package is imported only inside a
function that the loop itself calls.

What holds for all of them: they use ``rolecall.api`` and nothing else of rolecall; the job is asked and never
started, woken or changed; and an error is never a number. A loop has no way to leave a sample out, so a
reward whose ``on_error`` is ``drop_sample`` raises here, too.
"""
