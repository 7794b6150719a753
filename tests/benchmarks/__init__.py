# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures of the project, printed as ratios of one run."""
