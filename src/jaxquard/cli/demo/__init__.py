"""`jaxquard demo`."""
