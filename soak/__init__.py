"""Long runs that stand for weeks: interleavings, prefix bytes, failures and memory."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))
