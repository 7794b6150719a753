# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of all tests.

Property tests try the same examples in every run of `make test`, so that a red run is red again on
the next machine; `make fuzz` lets them look for new ones.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fuzz", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
