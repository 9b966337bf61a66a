"""`python -m oelm` is the `oelm` command. The library comes without it; the lab brings it."""

import importlib.util
import os
import sys

LAB = ("typer", "rich", "pydantic", "yaml", "filelock", "tokenizers", "datasets", "scipy", "matplotlib", "jinja2")


def main() -> None:
    missing = [name for name in LAB if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"error: the oelm command belongs to the lab, which is not installed ({', '.join(missing)}); "
            "pip install '.[lab]' in your clone",
            file=sys.stderr,
        )
        sys.exit(69)  # as for everything that is not there
    if not sys.stderr.isatty():  # other packages' progress bars are for a terminal; a log would be full of them
        os.environ.setdefault("TQDM_DISABLE", "1")
    from oelm.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
