# SPDX-License-Identifier: GPL-3.0-or-later
"""The real kubectl against a stand-in of the API server: its arguments, its output and its ways to fail are real, the cluster is not."""

from __future__ import annotations

import gzip
import http.server
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, List
from urllib.parse import parse_qs, urlsplit

import pytest

from ansible_collections.inferops.vllm.plugins.module_utils.evidence import freeze
from ansible_collections.inferops.vllm.plugins.module_utils.evidence.freeze import Wanted
from ansible_collections.inferops.vllm.plugins.module_utils.node.collect import Options

from .secrets_planted import PLANTED
from .test_freeze import everything

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

# name of the resource → kind, group and version
KINDS = {
    "pods": ("Pod", "v1"), "services": ("Service", "v1"), "configmaps": ("ConfigMap", "v1"), "persistentvolumeclaims": ("PersistentVolumeClaim", "v1"),
    "events": ("Event", "v1"), "nodes": ("Node", "v1"), "secrets": ("Secret", "v1"), "deployments": ("Deployment", "apps/v1"),
    "statefulsets": ("StatefulSet", "apps/v1"), "daemonsets": ("DaemonSet", "apps/v1"), "jobs": ("Job", "batch/v1")}
POD: Dict[str, Any] = {
    "apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": "vllm-0", "namespace": "inference", "labels": {"app": "vllm"}, "creationTimestamp": "2026-11-29T10:00:00Z", "uid": "1"},
    "spec": {"nodeName": "gpu-7", "containers": [{"name": "vllm", "image": "vllm/vllm-openai:kimi-k3", "env": [
        {"name": "HF_TOKEN", "value": "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"}, {"name": "VLLM_API_KEY", "value": "plain-word-of-a-key"}]}]},
    "status": {"phase": "Running", "containerStatuses": [{
        "name": "vllm", "image": "vllm/vllm-openai:kimi-k3", "imageID": "x", "restartCount": 3, "ready": False,
        "state": {"running": {"startedAt": "2026-11-29T10:05:00Z"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-11-29T10:00:00Z", "finishedAt": "2026-11-29T10:04:00Z"}}}]}}


class Api(http.server.BaseHTTPRequestHandler):
    """As much of an API server as kubectl asks for."""

    protocol_version = "HTTP/1.1"
    asked: List[str] = []

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        self.asked.append(self.path)
        if where.path.endswith("/log"):
            texts = ["before the restart"] if "previous" in parse_qs(where.query) else [line for _kind, line, _secret in PLANTED]
            lines = ["2026-11-29T10:00:00.000000000Z " + text for text in texts]
            self._answer(("\n".join(lines) + "\n").encode(), "text/plain")
            return
        self._answer(json.dumps(self._document(where.path)).encode(), "application/json")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _document(self, path: str) -> Dict[str, Any]:
        if path == "/version":
            return {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            versions = {name: {"groupVersion": name + "/v1", "version": "v1"} for name in ("apps", "batch")}
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": name, "versions": [version], "preferredVersion": version} for name, version in versions.items()]}
        if path in ("/api/v1", "/apis/apps/v1", "/apis/batch/v1"):
            group = path.partition("/api/")[2] or path.partition("/apis/")[2]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": [
                {"name": name, "singularName": "", "namespaced": name != "nodes", "kind": kind, "verbs": ["get", "list"]}
                for name, (kind, version) in KINDS.items() if version == group]}
        parts = path.strip("/").split("/")
        name = parts[-1]
        if name == "vllm-0":
            return POD
        kind, version = KINDS.get(name, ("Pod", "v1"))
        return {"kind": kind + "List", "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": [POD] if name == "pods" else []}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[List[str]]:
    """Paths that were asked of the API server which kubectl is configured for."""
    Api.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        configured(tmp_path, monkeypatch, "http://127.0.0.1:%d" % server.server_address[1])
        yield Api.asked
        server.shutdown()


def configured(folder: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    (folder / "config").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {"token": "cluster-Tok-5e1f0c"}}]}))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    monkeypatch.setenv("HOME", str(folder))


WANTED = Wanted("n1", Options(subset=("service",)), parts=("kubernetes",), timeout=10.0, namespace="inference", selector="app=vllm")


def test_objects_events_and_logs_are_taken_and_secrets_are_not_asked_for(cluster: List[str]) -> None:
    found = freeze.freeze(WANTED)
    ran = {" ".join(entry["argv"][1:3]): entry for entry in found.account["commands"] if entry["argv"][0] == "kubectl"}
    assert {name: entry["rc"] for name, entry in ran.items()} == dict.fromkeys(ran, 0) and len(ran) >= 5, ran
    assert not [path for path in cluster if "secrets" in path]
    assert any("labelSelector=app%3Dvllm" in path and "/namespaces/inference/" in path for path in cluster)
    logs = {log["file"]: log for log in found.account["logs"]}
    assert [log["origin"] for log in logs.values()] == ["vllm-0", "vllm-0"] and all(log["kind"] == "pod" for log in logs.values())
    texts = [gzip.decompress(b"".join(found.contents[name])) for name in logs]
    assert any(b"before the restart" in text for text in texts)
    whole = everything(found)
    assert b"OOMKilled" in whole and b"restartCount: 3" in whole
    for secret in (b"hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", b"plain-word-of-a-key", b"cluster-Tok-5e1f0c"):
        assert secret not in whole, secret
    assert not [kind for kind, _line, secret in PLANTED if kind != "secret of this node" and secret.encode() in whole]


def test_an_api_server_that_does_not_answer_costs_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        configured(tmp_path, monkeypatch, "http://127.0.0.1:%d" % silent.getsockname()[1])
        started = time.monotonic()
        found = freeze.freeze(WANTED._replace(timeout=3.0))
        assert time.monotonic() - started < 40
    ran = [entry for entry in found.account["commands"] if entry["argv"][0] == "kubectl"]
    assert ran and all(entry["rc"] != 0 or entry["error"] for entry in ran if entry["argv"][1] != "version")
    assert not [log for log in found.account["logs"] if log["kind"] == "pod" and log["file"]]
