"""The program that may save to a path: one at a time, numbered, so that an earlier one notices that it is not it.

In: a folder and the beginning of a file name in it. Out: an `OwnerClaim`, or an error that names the owner. `owner`
describes a program and finds out if it is alive; `claims` has the claims of this program and refreshes them.
"""
