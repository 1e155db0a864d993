"""The engine whose actors are threads of this process; the default.

In: a `Program` and one mesh per actor. Out: results as cells of this process. It is JaxPP's runtime (section 4) in
one process: a send is a transfer in memory, and needs no service. `devices` gives each actor its devices, `pace`
decides whether the actors have a thread each or share one.
"""
