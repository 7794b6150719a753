# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan says besides what runs: refusals, warnings and assumptions."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from ..checks.wording import listed, short

Refusal = Tuple[str, List[str]]
"""Why, and the facts that say so."""

NAMES_MOST = 4
"""Names of nodes that one sentence spells out."""


class Notes:
    """Sentences as they are found; what holds of many nodes alike is said once, with their names."""

    def __init__(self) -> None:
        self.refused: List[Refusal] = []
        self._warnings: List[str] = []
        self._assumed: List[str] = []
        self._of: Dict[str, List[str]] = {}
        self._alike: Dict[Tuple[str, Tuple[str, ...]], List[str]] = {}

    def refuse(self, why: str, *facts: str) -> None:
        """Refuse the plan; the same refusal counts once."""
        made = (short(why, 400), [short(fact, 300) for fact in facts])
        if made[0] not in [known for known, _facts in self.refused]:
            self.refused.append(made)

    def refuse_alike(self, label: str, why: str, *facts: str) -> None:
        """A refusal that many engines may share; `why` has a place (``%s``) for their names. Said by :meth:`flush`."""
        self._alike.setdefault((why, facts), []).append(label)

    def flush(self) -> None:
        """Say the refusals that engines share."""
        for (why, facts), names in self._alike.items():
            self.refuse(why % listed(names, NAMES_MOST), *facts)
        self._alike.clear()

    def warn(self, text: str) -> None:
        """What may go wrong, with its remedy or source."""
        self._warnings.append(text)

    def assume(self, text: str, name: str = "") -> None:
        """What was neither declared nor read; with `name`, `text` has a place (``%s``) for the names of all nodes of which it holds."""
        if not name:
            self._assumed.append(text)
            return
        names = self._of.setdefault(text, [])
        if name not in names:
            names.append(name)

    @property
    def warnings(self) -> List[str]:
        """Each warning once."""
        return _once(self._warnings)

    @property
    def assumed(self) -> List[str]:
        """Each assumption once; those of single nodes last."""
        return _once(self._assumed + [text % listed(names, NAMES_MOST) for text, names in self._of.items()])


def _once(texts: Sequence[str]) -> List[str]:
    return list(dict.fromkeys(texts))
