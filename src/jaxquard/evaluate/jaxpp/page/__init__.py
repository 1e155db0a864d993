"""The page of JaxPP (section 5).

In: a `JaxppReproduction`. Out: one HTML page with the paper's results beside ours, and the numbers as JSON.
"""
