"""Long runs: loads on gateways, faults, and checks of the damage (`./dev trial`)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))
