"""What every test shares."""

import os

# Before any test imports torch; `mha_core/__init__.py` says why.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
