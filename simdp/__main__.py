"""``python -m simdp``: hands over to the command line."""

from __future__ import annotations

import gc
import os


def main() -> None:
    """Run the command line and exit with its status."""
    # Modules and classes stay; looking through them for garbage costs a tenth of a short run.
    gc.set_threshold(20_000)
    # pydantic would read the metadata of every installed package to find its plug-ins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from simdp.cli import run_command_line

        status = run_command_line()
    except KeyboardInterrupt:  # while the modules were still being read
        os.write(2, b"stopped\n")
        status = 130
    raise SystemExit(status)


if __name__ == "__main__":
    main()
