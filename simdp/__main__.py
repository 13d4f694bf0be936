"""``python -m simdp``: hands over to the command line."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its status."""
    from simdp.cli import run_command_line

    raise SystemExit(run_command_line())


if __name__ == "__main__":
    main()
