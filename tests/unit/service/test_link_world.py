# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The link agent in a small world of nodes: whatever dies, restarts or is cut off, all ranks end up in one generation, or wait.

The world has systemd's rules (Restart=always, an invocation id a start, ExecStartPre before the server) and one second a tick. The
agents in it are the real state machine, which knows no clock and no socket.
"""

from __future__ import annotations

import random
from typing import Any, Dict, List, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.service.agent import AGAIN_S, FRESH_S, POLL_S, SILENT_S, Config, Rank, Unit

RESTART_S = 5
QUIET_S = int(SILENT_S + AGAIN_S + FRESH_S) + 4 * RESTART_S


class Node:
    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        self.active, self.sub, self.invocation = "inactive", "dead", ""
        self.wakes = 0.0
        self.kept: Dict[str, Any] = {}
        self.agent_from = 0.0
        self.blind_until = 0.0
        self.agent = self.fresh_agent()
        self.generation = ""

    def fresh_agent(self) -> Rank:
        names = tuple("n%d" % rank for rank in range(self.world.count))
        config = Config("engine", self.rank, 1, names, names, "plan", "vllm.service")
        return Rank(config, self.world.now, self.world.token, self.kept)

    def unit(self) -> Unit:
        return Unit("", "", "") if self.world.now < self.blind_until else Unit(self.active, self.sub, self.invocation)

    # systemd
    def start(self) -> None:
        if self.active in ("inactive", "failed"):
            self.begin()

    def begin(self) -> None:
        self.active, self.sub, self.invocation, self.generation = "activating", "start-pre", self.world.token(), ""

    def die(self) -> None:
        """The server ends, by itself or by a kill; systemd starts it again."""
        if self.active in ("active", "activating") and self.sub != "auto-restart":
            self.active, self.sub, self.wakes, self.generation = "activating", "auto-restart", self.world.now + RESTART_S, ""

    def stop(self, state: str = "inactive") -> None:
        self.active, self.sub, self.generation = state, "dead", ""

    def reboot(self) -> None:
        self.kept = {}
        self.agent = self.fresh_agent()
        self.invocation = ""
        self.begin()

    def tick(self) -> None:
        if self.sub == "auto-restart" and self.world.now >= self.wakes:
            self.begin()
        if self.sub == "start-pre" and self.world.now >= self.agent_from:
            self.agent.arrive(self.invocation)
            if self.agent.may_go(self.invocation):
                self.active, self.sub, self.generation = "active", "running", self.agent.joined[1]
                self.world.log.append((self.world.now, "run", self.rank))


class World:
    def __init__(self, count: int, seed: int) -> None:
        self.count, self.now, self.random = count, 0.0, random.Random(seed)
        self.log: List[Tuple[float, str, int]] = []
        self.opened: Dict[str, Dict[int, str]] = {}
        self.nodes = [Node(self, rank) for rank in range(count)]
        self.cut_until = [0.0] * count

    def token(self) -> str:
        return "%032x" % self.random.getrandbits(128)

    def alive(self, rank: int) -> bool:
        return self.now >= self.nodes[rank].agent_from

    def run(self, seconds: int) -> None:
        for _second in range(seconds):
            self.now += 1.0
            order = list(self.nodes)
            self.random.shuffle(order)
            for node in order:
                node.tick()
                if not self.alive(node.rank) or self.random.random() < 0.3:
                    continue
                self.turn(node)
                node.tick()
            self.check()

    def turn(self, node: Node) -> None:
        agent = node.agent
        agent.unit = node.unit()
        if node.rank and self.alive(0) and self.now >= max(self.cut_until[0], self.cut_until[node.rank]):
            head = self.nodes[0]
            # The head looks at its own service at its own pace: what it says may be some seconds old.
            reply = head.agent.answer(agent.question(), "n%d" % node.rank, self.now)
            assert agent.answered(reply, self.now) == ""
        why = agent.step(self.now)
        node.kept = agent.kept()
        if why and agent.unit.invocation == node.invocation:
            self.log.append((self.now, "kill", node.rank))
            node.die()

    def check(self) -> None:
        """No start ever runs in a generation that was opened for another start."""
        head = self.nodes[0].agent
        if head.generation:
            self.opened[head.generation] = dict(head.members)
        for node in self.nodes:
            if node.generation:
                assert self.opened[node.generation][node.rank] == node.invocation

    def do(self, what: str, rank: int, seconds: int) -> None:
        node = self.nodes[rank % self.count]
        if what == "die":
            node.die()
        elif what == "stop":
            node.stop()
        elif what == "refuse":
            node.stop("failed")
        elif what == "start":
            node.start()
        elif what == "reboot":
            node.reboot()
        elif what == "agent":
            node.agent_from = self.now + seconds
            node.agent = node.fresh_agent()
            node.agent.begun = self.now + seconds
        elif what == "cut":
            self.cut_until[node.rank] = self.now + seconds
        elif what == "blind":
            node.blind_until = self.now + seconds

    def settle(self) -> None:
        """No more faults."""
        self.run(120)
        self.run(QUIET_S)

    def whole(self) -> bool:
        return all(node.active == "active" for node in self.nodes) and len({node.generation for node in self.nodes}) == 1


EVENT = st.tuples(st.sampled_from(["die", "die", "stop", "start", "refuse", "reboot", "agent", "cut", "blind"]), st.integers(0, 3), st.integers(1, 90),
                  st.integers(0, 40))


@settings(max_examples=150)
@given(st.integers(2, 4), st.lists(EVENT, max_size=12), st.integers(0, 2**32))
def test_any_faults_end_with_all_ranks_in_one_generation_that_lasts(count: int, events: List[Tuple[str, int, int, int]], seed: int) -> None:
    world = World(count, seed)
    for node in world.nodes:
        node.start()
    for what, rank, seconds, later in events:
        world.do(what, rank, seconds)
        world.run(later)
    for node in world.nodes:
        node.start()
    world.settle()
    assert world.whole(), [(node.active, node.sub, node.generation, node.agent.own()) for node in world.nodes]
    before = len(world.log)
    world.run(QUIET_S)
    assert world.whole() and len(world.log) == before


@settings(max_examples=100)
@given(st.integers(2, 4), st.lists(EVENT, max_size=8), st.integers(0, 3), st.integers(0, 2**32))
def test_with_a_rank_that_stays_down_the_others_wait_and_nothing_loops(count: int, events: List[Tuple[str, int, int, int]], gone: int, seed: int) -> None:
    world = World(count, seed)
    for node in world.nodes:
        node.start()
    world.run(30)
    for what, rank, seconds, later in events:
        world.do(what, rank, seconds)
        world.run(later)
    for node in world.nodes:
        node.start()
    world.nodes[gone % count].stop()
    world.settle()
    assert [node.sub for node in world.nodes if node.rank != gone % count] == ["start-pre"] * (count - 1)
    before = len(world.log)
    world.run(QUIET_S)
    assert len(world.log) == before
    world.nodes[gone % count].start()
    world.settle()
    assert world.whole()


def started(count: int = 3) -> World:
    world = World(count, 1)
    for node in world.nodes:
        node.start()
    world.run(20)
    assert world.whole()
    return world


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_death_restarts_each_rank_once(rank: int) -> None:
    world = started()
    first = world.nodes[0].generation
    before = len(world.log)
    world.nodes[rank].die()
    world.run(60)
    assert world.whole() and world.nodes[0].generation != first
    after = world.log[before:]
    assert sorted(what for _now, what, _rank in after) == ["kill", "kill", "run", "run", "run"]
    assert {who for _now, what, who in after if what == "kill"} == {0, 1, 2} - {rank}


def test_a_draining_head_keeps_its_workers_and_a_stopped_one_does_not() -> None:
    world = started()
    head = world.nodes[0]
    head.active, head.sub = "deactivating", "stop"
    world.run(60)
    assert [node.active for node in world.nodes[1:]] == ["active", "active"]
    head.stop()
    world.run(20)
    assert [node.sub for node in world.nodes[1:]] == ["start-pre", "start-pre"]


def test_a_new_agent_and_an_agent_that_cannot_see_change_nothing() -> None:
    world = started()
    before, generation = len(world.log), world.nodes[0].generation
    for rank in range(3):
        world.do("agent", rank, 5)
        world.run(15)
        world.do("blind", rank, 20)
        world.run(30)
    assert world.whole() and world.nodes[0].generation == generation and len(world.log) == before


def test_a_short_cut_is_borne_and_a_long_one_ends_the_head() -> None:
    world = started()
    before = len(world.log)
    world.do("cut", 1, int(SILENT_S - 4 * POLL_S))
    world.run(60)
    assert len(world.log) == before and world.whole()
    world.do("cut", 1, int(SILENT_S * 2))
    world.run(int(SILENT_S * 1.5))
    assert ("kill", 0) in [(what, rank) for _now, what, rank in world.log[before:]]
    world.run(120)
    assert world.whole()


def test_ranks_of_different_plans_do_not_start_together() -> None:
    world = World(2, 1)
    world.nodes[1].agent.config = world.nodes[1].agent.config._replace(plan="other")
    for node in world.nodes:
        node.start()
    world.run(60)
    assert [node.sub for node in world.nodes] == ["start-pre", "start-pre"]
    assert "another plan" in world.nodes[0].agent.waits_for(world.now)
