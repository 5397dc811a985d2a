"""The costs of Talaria, measured in one run together with the official SDKs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))
