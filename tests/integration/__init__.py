# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks run as a user runs them, through ansible-runner."""
