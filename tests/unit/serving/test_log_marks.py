# SPDX-License-Identifier: GPL-3.0-or-later
"""Which lines of a log count as warnings and errors, and which of them are new."""

from __future__ import annotations

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.serving import log_marks


@pytest.mark.parametrize(("line", "level"), [
    ("a100:77:80 [1] misc/ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed", "WARNING"),
    ("(APIServer pid=1) ERROR:    Exception in ASGI application", "ERROR"),
    ("ERROR:    Exception in ASGI application", "ERROR"),
    ("(EngineCore pid=1) ERROR 11-29 22:55:07 [z.py:1] CUDA error: an illegal memory access. You may want to set CUDA_LAUNCH_BLOCKING=1", "ERROR"),
    ("(EngineCore pid=1) ERROR 11-29 22:55:07 [z.py:1] this does not support that", "ERROR"),
    ("(EngineCore pid=1) WARNING 11-29 22:55:07 [z.py:1] KV is odd", "WARNING"),
    ("(EngineCore pid=1) ERROR 11-29 22:55:07 [z.py:1] ", None),
    ("(EngineCore pid=1) WARNING 11-29 22:55:07 [z.py:1] this does not support that", None),
    ('(APIServer pid=1) INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK', None),
    ("a100:77:80 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via NET/IB/0", None),
    ("(APIServer pid=1) INFO 11-29 22:55:07 [z.py:1] the answer says ERROR: none", None),
])
@pytest.mark.parametrize("prefix", ["", "1795990009.123456 node docker[1]: "])
def test_what_counts(prefix: str, line: str, level: str | None) -> None:
    found = log_marks.read(prefix + line)
    assert [w["level"] for w in found["warnings"]] == ([level] if level else [])


def test_a_fraction_of_a_second_makes_a_line_new() -> None:
    text = "1795990100.950000 n d[1]: ERROR 11-29 22:55:07 [z.py:1] late\n1795990100.850000 n d[1]: ERROR 11-29 22:55:07 [z.py:1] early\n"
    found = log_marks.read(text, 1795990100.9)
    assert [w["text"] for w in found["new_warnings"]] == ["late"] and [w["text"] for w in found["warnings"]] == ["early"]


def test_what_nccl_could_take_is_no_channel():
    text = "".join("2026-11-29T10:00:00+00:00 n1 NCCL INFO %s\n" % line for line in (
        "NET/IB : Using [0]mlx5_0:1/IB", "NET/Socket : Using [0]eth0:10.0.0.1<0>", "Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL",
        "Channel 00/0 : 0[0] -> 8[0] via NET/IB/0/GDRDMA", "Channel 01/0 : 0[0] -> 8[0] via NET/Socket/0"))
    assert log_marks.read(text)["transports"] == {"nccl_net_ib": 1, "nccl_net_socket": 1, "nccl_mnnvl": 1, "nccl_gdrdma": 1, "nccl_socket": 1}
