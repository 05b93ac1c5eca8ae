"""What a judge said, as a number: parsers for reward adapters. Pure.

Each parser is a value, checked when it is made; ``read`` returns a finite number that it allows or raises
``ValueError`` with what was found and what is allowed. There is no default: a judge that rambled, was cut
off or was never reached gives no number.
"""
