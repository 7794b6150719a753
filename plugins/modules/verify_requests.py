#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_requests
short_description: Prove with real requests that vLLM serves
version_added: 0.2.0
description:
  - Sends requests to API servers of vLLM and judges the answers, in up to four stages. C(start) asks for health, version and models.
    C(request) sends fixed requests (text, stream, tool call, reasoning) and validates every answer. C(prefix) proves that a long shared prefix
    comes out of the prefix cache, by counters of tokens and never by time. C(concurrency) ramps up to a declared load.
  - Every wait has a deadline. A server that is unreachable, half-open, of another kind, or behind the wrong TLS gives a result that says so.
  - Runs where the task runs. On a node it asks as that node; with C(delegate_to=localhost) it asks as the controller.
  - Needs nothing but Python.
options:
  endpoints:
    description: URLs of all API servers, such as C(http://10.0.0.11:8000). Their C(/metrics) are read, too.
    type: list
    elements: str
    default: []
  route:
    description:
      - URL that the users will take (router or load balancer). Left out means that there is none.
      - Stages C(request) and C(prefix) run through it as well as at each of O(endpoints), the ramp only through it.
    type: str
    default: ""
  model:
    description: Name under which the model is served.
    type: str
    required: true
  version:
    description: Version of vLLM that was planned. Left out means that any is right.
    type: str
    default: ""
  stages:
    description: Stages to run.
    type: list
    elements: str
    choices: [start, request, prefix, concurrency]
    default: [start, request, prefix, concurrency]
  features:
    description: What is served, as in C(vllm_features). Requests for V(tool_calling) and V(reasoning) are sent only when they stand here.
    type: list
    elements: str
    default: [tool_calling, reasoning]
  flags:
    description: Planned flags of C(vllm serve) without dashes, for what C(/metrics) does not say (V(block-size), V(max-num-seqs)).
    type: dict
    default: {}
  api_key:
    description: API key. Never shown.
    type: str
  api_key_file:
    description: File that holds the API key, where the task runs.
    type: path
  ca_file:
    description: File of CA certificates that the server's certificate must come from. Left out means those of the system.
    type: path
  insecure:
    description: Take any certificate.
    type: bool
    default: false
  repeat:
    description: How often each request of stage C(request) is sent, 1 to 1000.
    type: int
    default: 3
  request_seconds:
    description: Bound of one request, 0.5 to 3600.
    type: float
    default: 30.0
  requests:
    description: A request set instead of the built-in one; each with C(id), C(body), C(expect), and if wanted C(stream), C(feature), C(retries).
    type: list
    elements: dict
    default: []
  prefix_tokens:
    description: Tokens of the prefix that the application shares. V(0) lets the stage choose one that must be found again.
    type: int
    default: 0
  prefix_filler_tokens:
    description: Tokens of other prompts that are sent between a request and the next with the same prefix, as other users would.
    type: int
    default: 0
  prefix_requests:
    description: Two to four chat requests of the application itself, whose shared prefix is judged instead of a made one.
    type: list
    elements: dict
    default: []
  concurrency:
    description: Streams at once that the cluster must hold. Outside 1 to 4096 the stage is not run and says so.
    type: int
    default: 8
  input_tokens:
    description: Tokens of each prompt of the ramp.
    type: int
    default: 256
  output_tokens:
    description: Tokens of each answer of the ramp.
    type: int
    default: 64
  error_budget:
    description: Share of requests that may fail before the ramp stops, 0 to below 1.
    type: float
    default: 0.01
  level_seconds:
    description: Seconds for which each step of the ramp sends new requests.
    type: float
    default: 10.0
  ramp_seconds:
    description: Bound of the whole ramp.
    type: float
    default: 300.0
  ttft_ms:
    description: Bound of the 95th percentile of the time to the first token at the target, in milliseconds.
    type: float
  itl_ms:
    description: Bound of the 95th percentile of the time between tokens at the target, in milliseconds.
    type: float
  agents:
    description: Sessions with growing history after the ramp, V(0) for none.
    type: int
    default: 0
  turns:
    description: Turns of each of these sessions, 1 to 64.
    type: int
    default: 4
  max_preemptions:
    description: Preemptions at the target that are still fine.
    type: int
    default: 0
  levels:
    description: Numbers of streams of the ramp, the target last. Left out means about ten that lead to O(concurrency).
    type: list
    elements: int
    default: []
  earlier:
    description: RV(stages) of an earlier call, so that stages are left out at an endpoint where stage C(request) failed.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: Requests are sent in check mode, too; nothing is configured by them.
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: Nothing is ever changed.
  idempotent:
    description: A second run changes nothing.
    support: full
seealso:
  - module: inferops.vllm.verify
  - module: inferops.vllm.verify_node
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Prove that the server answers and that its prefix cache works
  inferops.vllm.verify_requests:
    endpoints: [http://10.0.0.11:8000]
    model: moonshotai/Kimi-K3
    stages: [start, request, prefix]
    api_key_file: /etc/vllm/client.key
  register: served

- name: Ramp up through the router, from the controller
  inferops.vllm.verify_requests:
    endpoints: [http://10.0.0.11:8000, http://10.0.0.12:8000]
    route: https://llm.example.com
    model: moonshotai/Kimi-K3
    stages: [concurrency]
    concurrency: 64
    input_tokens: 4096
    output_tokens: 256
    ttft_ms: 2000
  delegate_to: localhost
"""

RETURN = r"""
stages:
  description:
    - Result of each stage, a table with C(status) (V(passed), V(failed), V(not_verified)), C(summary), C(seconds), C(findings) and C(data).
    - C(start) holds only the findings of the API servers; M(inferops.vllm.verify) joins them with those of the nodes.
  returned: success
  type: dict
request_set:
  description: SHA-256 of the request set.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.serving import requests, run
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import InputError

BOUNDS = {"repeat": (1, 1000), "request_seconds": (0.5, 3600), "level_seconds": (0.2, 3600), "ramp_seconds": (1, 86400), "turns": (1, 64),
          "agents": (0, 4096), "prefix_tokens": (0, 1048576), "prefix_filler_tokens": (0, 100000000)}


def main() -> None:
    """Parse arguments, run the stages, return their results."""
    module = AnsibleModule(
        argument_spec={
            "endpoints": {"type": "list", "elements": "str", "default": []},
            "route": {"type": "str", "default": ""},
            "model": {"type": "str", "required": True},
            "version": {"type": "str", "default": ""},
            "stages": {"type": "list", "elements": "str", "choices": list(run.HTTP_STAGES), "default": list(run.HTTP_STAGES)},
            "features": {"type": "list", "elements": "str", "default": list(requests.FEATURES)},
            "flags": {"type": "dict", "default": {}},
            "api_key": {"type": "str", "no_log": True},
            "api_key_file": {"type": "path", "no_log": False},
            "ca_file": {"type": "path"},
            "insecure": {"type": "bool", "default": False},
            "repeat": {"type": "int", "default": 3},
            "request_seconds": {"type": "float", "default": 30.0},
            "requests": {"type": "list", "elements": "dict", "default": []},
            "prefix_tokens": {"type": "int", "default": 0, "no_log": False},
            "prefix_filler_tokens": {"type": "int", "default": 0, "no_log": False},
            "prefix_requests": {"type": "list", "elements": "dict", "default": []},
            "concurrency": {"type": "int", "default": 8},
            "input_tokens": {"type": "int", "default": 256, "no_log": False},
            "output_tokens": {"type": "int", "default": 64, "no_log": False},
            "error_budget": {"type": "float", "default": 0.01},
            "level_seconds": {"type": "float", "default": 10.0},
            "ramp_seconds": {"type": "float", "default": 300.0},
            "ttft_ms": {"type": "float"},
            "itl_ms": {"type": "float"},
            "agents": {"type": "int", "default": 0},
            "turns": {"type": "int", "default": 4},
            "max_preemptions": {"type": "int", "default": 0},
            "levels": {"type": "list", "elements": "int", "default": []},
            "earlier": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    params = module.params
    for name, (low, high) in BOUNDS.items():
        if not low <= params[name] <= high:
            module.fail_json(msg="%s: %s is outside %s to %s" % (name, params[name], low, high))
    if any(not 1 <= level <= 4096 for level in params["levels"]):
        module.fail_json(msg="levels: numbers from 1 to 4096 are meant")
    wrong = requests.unusable(params["requests"])
    if wrong:
        module.fail_json(msg="requests: %s" % wrong)
    options = run.Options(
        key=params["api_key"] or "", key_file=params["api_key_file"] or "", ca_file=params["ca_file"] or "",
        endpoints=tuple(params["endpoints"]), stages=tuple(params["stages"]), features=tuple(params["features"]),
        requests=tuple(params["requests"]), prefix_bodies=tuple(params["prefix_requests"]), levels=tuple(params["levels"]), earlier=params["earlier"],
        **{name: params[name] for name in (
            "model", "route", "version", "insecure", "flags", "repeat", "request_seconds", "prefix_tokens", "prefix_filler_tokens", "concurrency",
            "input_tokens", "output_tokens", "error_budget", "level_seconds", "ramp_seconds", "ttft_ms", "itl_ms", "agents", "turns", "max_preemptions")},
    )
    try:
        found = run.run(options)
    except InputError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, stages=found, request_set=requests.set_hash(options.requests or requests.REQUESTS))


if __name__ == "__main__":
    main()
