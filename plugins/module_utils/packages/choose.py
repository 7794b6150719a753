# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages in which versions make the driver that was asked for."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..node.text import version as numbers
from .data import BRANCH_MIN, COMPONENTS, FAMILIES, SCHEMES, TITLES, Family, Scheme
from .model import Installed, Refused, branch_of, is_driver, newest, upstream


class Request(NamedTuple):
    """What is asked for.

    Attributes:
        branch: driver branch such as ``580``.
        version: exact driver version, empty for any of the branch.
        flavour: ``open`` or ``proprietary``.
        components: some of COMPONENTS.
        driver: the driver itself is wanted; without it components must fit the driver that is installed.
        headers: headers of the running kernel are wanted where modules are built.
        update: move to the newest version of the branch although another one of it is installed.
        unhold, downgrade, repair: what is allowed.
        while_used: change packages although something uses the GPUs.
        pin: ``version``, ``branch`` or ``none``.
    """

    branch: str = "580"
    version: str = ""
    flavour: str = "open"
    components: Tuple[str, ...] = ()
    driver: bool = True
    headers: bool = True
    update: bool = False
    unhold: bool = False
    downgrade: bool = False
    repair: bool = False
    pin: str = "version"
    while_used: bool = False


class Choice(NamedTuple):
    """The packages that must be there.

    Attributes:
        version: driver version without epoch and revision.
        wanted: name → full version; empty where the package has no version that matters.
        remove: installed packages of another branch that stand in the way.
        stream: module stream to enable, empty for none.
    """

    scheme: str
    version: str
    wanted: Dict[str, str]
    remove: Tuple[str, ...]
    stream: str
    builds: bool


def validate(request: Request) -> None:
    """Raise Refused for a request that makes no sense by itself."""
    # Who goes back to just what was there before may go below the lowest branch: the way back of a failed upgrade.
    back = request.downgrade and bool(request.version)
    if not request.branch.isdigit() or (int(request.branch) < BRANCH_MIN and not back):
        raise Refused("branch: %s is older than %d, which is the lowest branch that the images' CUDA starts on" % (request.branch, BRANCH_MIN), "input")
    if request.version and (not branch_of(request.version) or request.version != upstream(request.version)):
        raise Refused("version: %s is no driver version such as 580.95.05" % request.version, "input")
    if request.version and branch_of(request.version) != request.branch:
        raise Refused("version %s is not of branch %s" % (request.version, request.branch), "input")
    unknown = sorted(set(request.components) - set(COMPONENTS))
    if unknown:
        raise Refused("components: there is no %s; there are %s" % (", ".join(unknown), ", ".join(COMPONENTS)), "input")


def family_row(name: str, pretty: str) -> Family:
    """The row of a family. Raises Refused where the distribution is none that is known."""
    if name not in FAMILIES:
        raise Refused("%s is none of the releases whose packages are known: %s" % (pretty or "this system", ", ".join(FAMILIES)), "family")
    return FAMILIES[name]


def fill(name: str, branch: str, kernel: str) -> str:
    """A package name with its words filled in, without the mark of a version of its own."""
    return name.lstrip("~").format(branch=branch, kernel=kernel)


def schemes(family: str, request: Request) -> List[Scheme]:
    """The schemes that this release may have for this request."""
    return [row for row in SCHEMES if family in row.families and (not row.branches or request.branch in row.branches) and request.flavour in row.drivers]


def names_to_ask(family: str, request: Request, kernel: str, installed: Mapping[str, Installed]) -> List[str]:
    """Every package name that may matter, for one question to the package manager."""
    found = {FAMILIES[family].headers.format(kernel=kernel), "nvidia-driver-pinning-%s" % request.branch}
    for scheme in schemes(family, request):
        for name in scheme.drivers[request.flavour]:
            found.add(fill(name, request.branch, kernel))
        for component in request.components:
            found.update(fill(name, request.branch, kernel) for name in scheme.components[component])
    found.update(name for name in installed if is_driver(name))
    return sorted(found)


def installed_version(scheme: Scheme, request: Request, kernel: str, installed: Mapping[str, Installed]) -> str:
    """Version of the driver that is installed by this scheme, empty when it is not all there."""
    names = [name for name in scheme.drivers[request.flavour] if not name.startswith("~")]
    versions = {upstream(installed[n].version) if n in installed else "" for n in (fill(name, request.branch, kernel) for name in names)}
    return versions.pop() if len(versions) == 1 else ""


def any_driver_version(installed: Mapping[str, Installed]) -> str:
    """The highest version that installed packages of the driver have, whatever their names; empty when there is none."""
    found = [upstream(one.version) for name, one in installed.items() if is_driver(name) and branch_of(one.version)]
    return newest(found)[0] if found else ""


def choose(
    request: Request, family: str, kernel: str, available: Mapping[str, Sequence[str]], installed: Mapping[str, Installed], fixed: str = "",
) -> Choice:
    """The packages to have.

    Args:
        available: name → full versions that can be had or are installed.
        fixed: only this driver version, such as that which is installed.

    Raises Refused, which says what is missing.
    """
    troubles: List[str] = []
    rows = schemes(family, request)
    if not rows:
        raise Refused("%s has no packages of a %s driver of branch %s" % (family, request.flavour, request.branch), "unavailable")
    # What is installed already keeps its names: sources must not be mixed.
    rows.sort(key=lambda row: not installed_version(row, request, kernel, installed))
    for scheme in rows:
        found, trouble = _of_scheme(scheme, request, kernel, available, fixed)
        if found:
            return found
        troubles.append(trouble)
    told = [trouble for trouble in troubles if trouble]
    raise Refused("; ".join(told[:1] if told else ["no packages"]), "unavailable")


def _of_scheme(
    scheme: Scheme, request: Request, kernel: str, available: Mapping[str, Sequence[str]], fixed: str,
) -> Tuple[Optional[Choice], str]:
    wanted_exact = request.version or fixed

    def fits(version: str) -> bool:
        return upstream(version) == wanted_exact if wanted_exact else branch_of(version) == request.branch

    def versions_of(name: str) -> Dict[str, str]:
        """Driver version → full version, the newest build of each."""
        found: Dict[str, str] = {}
        for full in newest(available.get(name, ())):
            found.setdefault(upstream(full), full)
        return found

    marked = [(fill(name, request.branch, kernel), name.startswith("~")) for name in scheme.drivers[request.flavour]]
    label = wanted_exact or "branch " + request.branch
    missing = [name for name, _own in marked if not available.get(name)]
    if missing:
        return None, "no repository offers %s" % ", ".join(missing)
    first = next(name for name, own in marked if not own)
    candidates = [upstream(full) for full in newest(available[first]) if fits(full)]
    if not candidates:
        return None, "no repository offers %s of %s; there are %s" % (first, label, ", ".join(sorted(versions_of(first), key=numbers)))
    trouble = ""
    for candidate in dict.fromkeys(candidates):
        wanted: Dict[str, str] = {}
        lacks = [name for name, own in marked if not own and candidate not in versions_of(name)]
        for name, own in marked:
            wanted[name] = "" if own else versions_of(name).get(candidate, "")
        for component in request.components:
            chosen, why = _component(scheme, component, request.branch, kernel, candidate, available, versions_of)
            if why:
                lacks.append(why)
            else:
                wanted.update(chosen)
        if not lacks:
            stream = scheme.stream.get(request.flavour, "").format(branch=request.branch)
            return Choice(scheme.name, candidate, wanted if request.driver else _only(wanted, marked), (), stream, scheme.builds), ""
        trouble = trouble or "driver %s cannot be completed: no repository offers %s" % (candidate, ", ".join(lacks))
    return None, trouble


def _only(wanted: Mapping[str, str], marked: Sequence[Tuple[str, bool]]) -> Dict[str, str]:
    own = {name for name, _own in marked}
    return {name: version for name, version in wanted.items() if name not in own}


def _component(
    scheme: Scheme, component: str, branch: str, kernel: str, candidate: str, available: Mapping[str, Sequence[str]],
    versions_of: Callable[[str], Dict[str, str]],
) -> Tuple[Dict[str, str], str]:
    """Name and version of a component beside driver `candidate`, or why there is none."""
    seen: List[str] = []
    for marked in scheme.components[component]:
        name = fill(marked, branch, kernel)
        if not available.get(name):
            continue
        if marked.startswith("~"):
            return {name: ""}, ""
        offered = versions_of(name)
        if candidate in offered:
            return {name: offered[candidate]}, ""
        seen += ["%s %s" % (name, one) for one in offered]
    names = " or ".join(fill(one, branch, kernel) for one in scheme.components[component])
    told = "; there is %s" % ", ".join(seen[:4]) if seen else ""
    return {}, "%s (%s %s%s)" % (TITLES[component], names, candidate, told)


def extend(choice: Choice, request: Request, available: Mapping[str, Sequence[str]], installed: Mapping[str, Installed]) -> Choice:
    """`choice` with what else of the driver is installed, so that nothing stays behind at another version.

    Packages that carry another branch in their name are taken away when a wanted package takes their place.
    """
    wanted, remove = dict(choice.wanted), list(choice.remove)
    for name, one in sorted(installed.items()):
        if name.startswith("nvidia-driver-pinning-") and name != "nvidia-driver-pinning-%s" % request.branch:
            remove.append(name)
            if available.get("nvidia-driver-pinning-%s" % request.branch):
                wanted["nvidia-driver-pinning-%s" % request.branch] = ""
        if not is_driver(name) or name in wanted or not branch_of(one.version):
            continue
        full = next((v for v in newest(available.get(name, ())) if upstream(v) == choice.version), "")
        stem, _dash, suffix = name.rpartition("-")
        if full and (upstream(one.version) != choice.version or one.state != "ok"):
            wanted[name] = full
        elif not full and suffix.isdigit() and any(other == stem or other.startswith(stem + "-") for other in wanted):
            remove.append(name)
    return choice._replace(wanted=wanted, remove=tuple(remove))


def unsatisfied(choice: Choice, installed: Mapping[str, Installed]) -> Dict[str, str]:
    """Wanted packages that are not there in the wanted version and whole; name → full version."""
    found = {}
    for name, version in choice.wanted.items():
        one = installed.get(name)
        if one is None or one.state != "ok" or (version and one.version != version):
            found[name] = version
    return found


def leftovers(choice: Choice, installed: Mapping[str, Installed]) -> List[str]:
    """Installed packages of the driver whose version is another one, as ``name version``."""
    return sorted(
        "%s %s" % (name, one.version) for name, one in installed.items()
        if is_driver(name) and branch_of(one.version) and upstream(one.version) != choice.version and int(branch_of(one.version)) >= 400)
