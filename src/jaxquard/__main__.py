"""`python -m jaxquard` is the command `jaxquard`."""

from jaxquard.cli.main import main

if __name__ == "__main__":
    main()
