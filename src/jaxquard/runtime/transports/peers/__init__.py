"""Connections between the processes of a mesh, which nobody else can open (docs/security.md).

In: the secret of a mesh and the addresses of its processes. Out: for each peer a connection to write to and one to
read from, both ends of which know the secret. `secret` and `certificate` are what they know, `handshake` proves it,
`listener` admits, `dial` connects, `links` keeps the connections of one process.
"""
