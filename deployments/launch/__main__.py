"""``python -m deployments.launch CONFIG.yaml``."""

import sys

from deployments.launch.launcher import main

sys.exit(main(sys.argv[1:]))
