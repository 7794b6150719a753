#!/usr/bin/python
# Copyright (c) inferops.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_watch
short_description: Measure how long a service is away while one of its processes is restarted
version_added: 0.2.0
description:
  - Sends small requests to every API server until one fails and then four in a row are right again at each that failed, and returns how
    long that took and how many requests had neither answer nor error. What is in flight at the end is waited for.
  - Meant to run in the background (C(async)) while M(inferops.vllm.verify_kill) ends a process.
options:
  endpoints:
    description: URLs of all API servers, and of the router when there is one; only the one whose engine lost a process shows it.
    type: list
    elements: str
    required: true
  model:
    description: Name under which the model is served.
    type: str
    required: true
  limit:
    description: Seconds from the first failure within which the service must be right again.
    type: float
    default: 600.0
  grace:
    description: Seconds to wait for the first failure.
    type: float
    default: 60.0
  request_seconds:
    description: Bound of one request.
    type: float
    default: 60.0
  node:
    description: Name of the node whose process is ended, for the report.
    type: str
    default: ""
  what:
    description: Which process is ended, for the report.
    type: str
    default: ""
  api_key:
    description: API key. Never shown.
    type: str
  api_key_file:
    description: File that holds the API key, where the task runs.
    type: path
  ca_file:
    description: File of CA certificates.
    type: path
  insecure:
    description: Take any certificate.
    type: bool
    default: false
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
    details: Nothing on a node is changed in either mode.
  diff_mode:
    description: Returns details of what changed.
    support: none
    details: Nothing is ever changed.
  idempotent:
    description: A second run changes nothing.
    support: full
author:
  - inferops.vllm contributors (@inferops)
"""

EXAMPLES = r"""
- name: Watch the service
  inferops.vllm.verify_watch:
    endpoints: ["http://10.0.0.11:8000", "http://10.0.0.12:8000"]
    model: moonshotai/Kimi-K3
    limit: 900
  async: 1000
  poll: 0
  register: watching
"""

RETURN = r"""
event:
  description: Addresses that failed, seconds until all of them were right again (null when they were not), hung requests, errors by kind.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.inferops.vllm.plugins.module_utils.serving import watch
from ansible_collections.inferops.vllm.plugins.module_utils.serving.client import InputError, endpoint, read_key
from ansible_collections.inferops.vllm.plugins.module_utils.serving.result import scrub


def main() -> None:
    """Parse arguments, watch, return."""
    module = AnsibleModule(
        argument_spec={
            "endpoints": {"type": "list", "elements": "str", "required": True},
            "model": {"type": "str", "required": True},
            "limit": {"type": "float", "default": 600.0},
            "grace": {"type": "float", "default": 60.0},
            "request_seconds": {"type": "float", "default": 60.0},
            "node": {"type": "str", "default": ""},
            "what": {"type": "str", "default": ""},
            "api_key": {"type": "str", "no_log": True},
            "api_key_file": {"type": "path", "no_log": False},
            "ca_file": {"type": "path"},
            "insecure": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    for name in ("limit", "grace", "request_seconds"):
        if not 0.5 <= params[name] <= 86400:
            module.fail_json(msg="%s: %s is outside 0.5 to 86400" % (name, params[name]))
    if not params["endpoints"]:
        module.fail_json(msg="endpoints: at least one URL is needed")
    try:
        key = read_key(params["api_key"] or "", params["api_key_file"] or "")
        targets = [endpoint(url, key, params["ca_file"] or "", params["insecure"]) for url in dict.fromkeys(params["endpoints"])]
    except InputError as exc:
        module.fail_json(msg=str(exc))
    found = watch.watch(targets, params["model"], params["limit"], params["grace"], params["request_seconds"])
    event = watch.outcome(found, params["node"], params["what"])
    module.exit_json(changed=False, event=scrub(event, [secret for target in targets for secret in target.secrets]))


if __name__ == "__main__":
    main()
