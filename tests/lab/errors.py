# SPDX-License-Identifier: GPL-3.0-or-later
"""The two ways in which the lab says no."""

from __future__ import annotations


class LabError(Exception):
    """Something the lab tried went wrong; the message says what, in one sentence."""

    exit_code = 1


class CannotRunHere(LabError):
    """This machine cannot hold a lab; the message names what is missing."""

    exit_code = 2
