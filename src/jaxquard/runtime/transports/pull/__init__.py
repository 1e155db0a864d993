"""Ends of channels for transports where the target asks for a message by a number (`stream/`, `transfer/`).

In: a server that offers arrays under numbers and pulls those of others. Out: a sender and a receiver of `protocol`.
`numbers` computes the numbers, `receiver` pulls ahead of need within a window.
"""
