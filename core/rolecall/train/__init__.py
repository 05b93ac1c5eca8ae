"""What a training loop uses: committed batches, one after the other."""

from rolecall.train.consume import CommittedBatch, consume, consume_async

__all__ = ["CommittedBatch", "consume", "consume_async"]
