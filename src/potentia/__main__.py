"""``python -m potentia`` is ``potentia``."""

from potentia.cli import main

if __name__ == "__main__":
    main()
