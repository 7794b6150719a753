# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets of many kinds, as they come in logs, files and outputs. None is real; each is (kind, line, the part that must not be found)."""

from __future__ import annotations

from typing import List, Tuple

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJlLXBsYW50ZWQ"
_KEY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDplantedplanted"

PLANTED: List[Tuple[str, str, str]] = [
    ("Hugging Face token", "INFO loading with hf_AbCdEfGhIjKlMnOpQrStUvWx from hub", "hf_AbCdEfGhIjKlMnOpQrStUvWx"),
    ("HF_TOKEN by name", "HF_TOKEN=plain-looking-value-1", "plain-looking-value-1"),
    ("API key option", "vllm serve /m --api-key first-key-value second-key-value --port 8000", "second-key-value"),
    ("API key in arguments", "non-default args: {'api_key': ['listed-key-value'], 'port': 8000}", "listed-key-value"),
    ("OpenAI key", "client key sk-proj-AbCdEfGhIjKlMnOpQrSt used", "sk-proj-AbCdEfGhIjKlMnOpQrSt"),
    ("NGC key", "docker login with nvapi-AbCdEfGhIjKlMnOpQrSt", "nvapi-AbCdEfGhIjKlMnOpQrSt"),
    ("registry auth", '{"auths": {"registry.lan": {"auth": "bGFiOnBsYW50ZWQtcGFzcw=="}}}', "bGFiOnBsYW50ZWQtcGFzcw=="),
    ("docker login", "docker login -u lab -p planted-login-pass registry.lan", "planted-login-pass"),
    ("URL password", "pulling https://lab:planted-url-pass@registry.lan/v2/", "planted-url-pass"),
    ("proxy with password", "http_proxy=http://proxyuser:planted-proxy-pass@proxy.lan:3128", "planted-proxy-pass"),
    ("cookie", "Cookie: session=planted-cookie-1; csrf=planted-cookie-2", "planted-cookie-2"),
    ("set-cookie", "< Set-Cookie: sid=planted-set-cookie; Path=/", "planted-set-cookie"),
    ("bearer", "curl -H 'Authorization: Bearer planted-bearer-token-1'", "planted-bearer-token-1"),
    ("basic", "Authorization: Basic cGxhbnRlZDpiYXNpYw==", "cGxhbnRlZDpiYXNpYw=="),
    ("x-api-key", "x-api-key: planted-x-api-key-1", "planted-x-api-key-1"),
    ("AWS access key", "using AKIAPLANTEDPLANTED12 for s3", "AKIAPLANTEDPLANTED12"),
    ("AWS secret key", "AWS_SECRET_ACCESS_KEY=planted/aws+secret/key/AbCdEf0123456789", "planted/aws+secret/key"),
    ("AWS session token", "aws_session_token = FwoGZXIvYXdzEPlanted", "FwoGZXIvYXdzEPlanted"),
    ("private key", "-----BEGIN PRIVATE KEY-----\n%s\n%s\n-----END PRIVATE KEY-----" % (_KEY, _KEY), _KEY),
    ("OpenSSH key", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAplanted\n-----END OPENSSH PRIVATE KEY-----", "b3BlbnNzaC1rZXktdjEAAAAplanted"),
    ("JSON web token", "token is %s here" % JWT, JWT),
    ("signed URL", "GET https://s3.lan/w.safetensors?X-Amz-Signature=planted0123456789abcdef&x=1", "planted0123456789abcdef"),
    ("Azure SAS", "https://acct.blob.lan/w?sv=2024&sig=plantedSas%2Bsig%3D", "plantedSas%2Bsig%3D"),
    ("Azure account key", "AccountName=a;AccountKey=cGxhbnRlZC1hY2NvdW50LWtleQ==;", "cGxhbnRlZC1hY2NvdW50LWtleQ=="),
    ("GitHub token", "remote https://github.lan ghp_AbCdEfGhIjKlMnOpQrStUvWx012345", "ghp_AbCdEfGhIjKlMnOpQrStUvWx012345"),
    ("GitLab token", "glpat-AbCdEfGhIjKlMnOpQrSt cloned", "glpat-AbCdEfGhIjKlMnOpQrSt"),
    ("Docker token", "dckr_pat_AbCdEfGhIjKlMnOpQrSt", "dckr_pat_AbCdEfGhIjKlMnOpQrSt"),
    ("Slack token", "posting with xoxb-1234567890-planted", "xoxb-1234567890-planted"),
    ("Slack webhook", "POST https://hooks.slack.com/services/T000/B000/plantedwebhook", "plantedwebhook"),
    ("Google key", "AIzaSyPlantedPlantedPlantedPlantedPlanted0", "AIzaSyPlantedPlantedPlantedPlantedPlanted0"),
    ("Stripe key", "sk_live_AbCdEfGhIjKlMnOpQrSt", "sk_live_AbCdEfGhIjKlMnOpQrSt"),
    ("Vault token", "VAULT hvs.CAESIAbCdEfGhIjKlMnOpQrStUv", "hvs.CAESIAbCdEfGhIjKlMnOpQrStUv"),
    ("wandb key", "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567"),
    ("password in JSON", '{"user": "lab", "password": "planted-json-pass"}', "planted-json-pass"),
    ("PGPASSWORD", "PGPASSWORD=planted-pg-pass psql", "planted-pg-pass"),
    ("netrc", "machine hub.lan login lab password planted-netrc-pass", "planted-netrc-pass"),
    ("curl user", "curl -u lab:planted-curl-pass https://registry.lan/v2/", "planted-curl-pass"),
    ("manifest env", "        - name: SOME_API_KEY\n          value: planted-manifest-value", "planted-manifest-value"),
    ("swarm token", "docker swarm join --token SWMTKN-1-0abc-plantedplantedplantedplanted 10.0.0.1", "plantedplantedplantedplanted"),
    ("npm auth", "_auth = cGxhbnRlZDpucG1hdXRo", "cGxhbnRlZDpucG1hdXRo"),
    ("value with a comma", "VLLM_API_KEY=first-part,planted-behind-comma", "planted-behind-comma"),
    ("value with a semicolon", "HF_TOKEN=first;planted-behind-semicolon;NCCL_DEBUG=INFO", "planted-behind-semicolon"),
    ("option with a comma", "cmd: ['serve', '--api-key', 'first,planted-in-option', '--port', '8000']", "planted-in-option"),
    ("password of several words", "REGISTRY_PASSWORD=correct horse planted-staple", "planted-staple"),
    ("password of several words in an environment", '"Env": ["SMTP_PASSWORD=correct horse planted-battery", "PATH=/usr/bin"]', "planted-battery"),
    ("name without a sign", "using VLLM_API_KEY planted0without1sign for the server", "planted0without1sign"),
    ("Dockerfile", "#5 ENV HF_TOKEN planted-in-dockerfile", "planted-in-dockerfile"),
    ("GITHUB_PAT by name", "GITHUB_PAT=planted-pat-value", "planted-pat-value"),
    ("token as the user of a URL", "git clone https://plantedtokenasuser0123@git.lan/x.git", "plantedtokenasuser0123"),
    ("secret of this node", "the engine was asked with nodes-own-secret-9 today", "nodes-own-secret-9"),
]
KNOWN = "nodes-own-secret-9"
"""A value without shape or name, which the node is known to use."""

INNOCENT = [
    "INFO 11-29 10:00:00 [loggers.py:111] Engine 000: Avg prompt throughput: 12.3 tokens/s, Avg generation throughput: 45.6 tokens/s, Running: 3 reqs",
    "max_num_batched_tokens=8192, eos_token_id=2, pad_token: <pad>, bos_token='<s>'",
    "docker run -u 1000:1000 --user 0:0 image",
    "vllm/vllm-openai:kimi-k3@sha256:82d6470fd7076f04a501b8ba94a1ddfc30b3135ab826c3323fb4f53564594480",
    "HF_TOKEN is not set, VLLM_API_KEY environment variable missing; export HF_TOKEN first, exclude_pat='*.bin' MODEL_PATH /srv/model-1",
    "https://registry.lan/v2/ git@git.lan:x.git user@host https://lab@git.lan/x.git",
    "KeyError: 'model.layers.3.mlp.experts.w13_weight'",
    "exit code=137, key_value_heads=8, tokenizer=/models-tiny, HF_TOKEN_PATH=/root/.cache/huggingface/token",
    "(Worker_TP3 pid=4424) ERROR 04-20 07:01:13 [multiproc_executor.py:783] RuntimeError: Error 802: system not yet initialized",
]
