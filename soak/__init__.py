"""What must hold over weeks, in minutes: interleavings, prefix bytes, memory. Uses the tests' own rigs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))
