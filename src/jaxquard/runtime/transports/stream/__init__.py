"""Transport over connections of our own, which only the processes of the mesh can open (`peers`).

In: arrays to send; out: arrays that have arrived. `frames` turns an array into bytes and back, `server` matches offers
with pulls, `ends` are the two ends of a channel.
"""
