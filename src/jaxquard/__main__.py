"""`python -m jaxquard` and the installed command: Ctrl-C is heeded before the command line is imported."""

from jaxquard.cli.interrupt import end_early_interrupts


def main() -> None:
    """Entry point of the installed command."""
    end_early_interrupts()
    from jaxquard.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
