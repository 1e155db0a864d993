"""`jaxquard reproduce`, one paper a file."""
