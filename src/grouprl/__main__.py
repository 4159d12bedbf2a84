"""`python -m grouprl`, and `torchrun … -m grouprl`: the command line."""

import sys

from grouprl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
