# SPDX-License-Identifier: GPL-3.0-or-later
"""What modprobe and the kernel say, and what it means. Texts of the real tools, see the facts on nvidia_peermem."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.kernel import explain

SAID = "modprobe: ERROR: could not insert '%s': %s\n"
UNKNOWN = "Unknown symbol in module, or unknown parameter (see dmesg)"


@pytest.mark.parametrize(("name", "said", "log", "kind", "part"), [
    ("nvidia_peermem", "Invalid argument", "", "no_peer_symbols", "built without the peer memory interface"),
    ("nvidia-peermem", UNKNOWN, "[ 9.1] nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)", "unknown_symbol",
     "(ib_register_peer_memory_client)"),
    ("nvidia_peermem", "Invalid argument", "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client\n"
     "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)", "version", "rebuild the driver's modules"),
    ("nvidia_peermem", "Invalid argument", "nvidia_peermem: peer memory client nv_mem is already registered", "conflict", "nv_peer_mem"),
    ("nvidia", "Key was rejected by service", "Loading of module with unavailable key is rejected", "key_rejected", "mokutil --import"),
    ("nvidia", "Operation not permitted", "Lockdown: modprobe: unsigned module loading is restricted", "key_rejected", "Secure Boot"),
    ("mlx5_ib", UNKNOWN, "mlx5_ib: Unknown symbol mlx5_core_foo (err -2)", "unknown_symbol", "(mlx5_core_foo)"),
    ("mlx5_ib", "Invalid argument", "mlx5_ib: disagrees about version of symbol ib_umem_get", "version", "reboot into the modules"),
    ("mlx5_ib", "Invalid argument", "", "invalid_argument", "/etc/modprobe.d"),
    ("nvidia", "Exec format error", "", "other_kernel", "another kernel than 6.1.0"),
    ("nvidia", "No such device", "", "no_device", "lspci"), ("ib_umad", "Operation not permitted", "", "not_permitted", "on the host"),
    ("gdrdrv", "Device or resource busy", "", "busy", "another module"), ("ib_umad", "Something new", "", "other", "Something new"),
])
def test_reasons_of_loading(name: str, said: str, log: str, kind: str, part: str) -> None:
    why = explain.loading(name, SAID % (name, said), explain.telling(log, name), "6.1.0")
    assert why.kind == kind and part in why.sentence, why


def test_a_module_that_is_not_there() -> None:
    said = "modprobe: FATAL: Module %s not found in directory /lib/modules/6.1.0-57-amd64\n"
    assert "role driver" in explain.loading("nvidia_peermem", said % "nvidia_peermem", [], "6.1.0-57-amd64").fix
    assert "DOCA-OFED" in explain.loading("mlx5_core", said % "mlx5_core", []).fix
    assert explain.loading("x", "modprobe did not end within 120 s", []).kind == "hung"


@pytest.mark.parametrize(("users", "references", "holders", "said", "kind", "part"), [
    (["nvidia_uvm"], 1, [], "modprobe: FATAL: Module nvidia is in use.", "in_use", "nvidia_uvm"),
    ([], 3, ["python3 (process 7)"], "modprobe: FATAL: Module nvidia is in use.", "in_use", "python3 (process 7)"),
    ([], 2, [], "modprobe: FATAL: Module nvidia is in use.", "in_use", "2 references"),
    ([], 0, [], "modprobe: FATAL: Module nvidia is builtin.", "builtin", "part of the kernel"),
    ([], 0, [], "modprobe did not end within 120 s", "hung", "reboot"), ([], 0, [], "", "other", "it said nothing"),
])
def test_reasons_of_unloading(users: list[str], references: int, holders: list[str], said: str, kind: str, part: str) -> None:
    why = explain.unloading("nvidia", said, users, references, holders)
    assert why.kind == kind and part in why.sentence


def test_only_lines_of_the_module_count() -> None:
    log = "[1.0] nvidia_peermem: a\n[2.0] nvidia-peermem b\n[3.0] nvidia_peermem_other: c\n[4.0] usb 1-1: d\n[5.0] nvidia_peermem: a\n"
    assert explain.telling(log, "nvidia_peermem") == ["nvidia_peermem: a", "nvidia-peermem b"]


@given(st.text(), st.text(max_size=20))
def test_no_text_raises(text: str, name: str) -> None:
    assert explain.loading(name, text, explain.telling(text, name)).why
    assert explain.unloading(name, text, [], 0, []).why
