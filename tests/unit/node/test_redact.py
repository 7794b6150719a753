# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets of many kinds are taken out, and words that only look like them stay."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ansible_collections.inferops.vllm.plugins.module_utils.node.redact import MASK, redact

SECRET = "zq8Kt5vY2mN7pL4xWb9c"

FORMS = [
    "HF_TOKEN=%s", "HUGGING_FACE_HUB_TOKEN=%s\0PATH=/bin", "export NGC_API_KEY='%s'", "NGC_CLI_API_KEY=\"%s\"",
    "VLLM_API_KEY=%s", "VLLM_API_KEYS=%s", "OPENAI_KEY=%s", "SSH_KEY=%s",
    "OPENAI_API_KEY: %s",
    "WANDB_API_KEY=%s", "AWS_SECRET_ACCESS_KEY=%s", "AWS_SESSION_TOKEN=%s", "DB_PASS=%s", "MYSQL_PWD=%s", "password = %s", "Passphrase: %s",
    "client_secret: '%s'", "AZURE_STORAGE_KEY=%s", "AccountKey=%s;EndpointSuffix=x", "TOKEN=%s", "registry-token: %s", "identitytoken: %s",
    '"password": "%s and more"', '"api_key":"%s"', "'api_key': ['%s', 'x%s']", '\\"token\\": \\"%s\\"', '{"token": "%s", "port": 1}',
    "Namespace(host=None, api_key=['%s'], port=8000)", "password: \"%s", "token=> %s",
    "--api-key %s --port 8000", "--api-key=%s", "--api-key %s x%s --port 1", "--api-key\0%s\0--port\0008000\0",
    '"--api-key", "%s", "--port"',
    "- --api-key\n- %s\n- --port", "--api-key '%s' serve", "--hf-token %s model", "-e HF_TOKEN=%s image", "--password %s",
    "--ssl-keyfile-password %s",
    "Authorization: Bearer %s", "authorization=Basic %s", '"Authorization": "Bearer %s"', "Proxy-Authorization: Basic %s", "X-Api-Key: %s",
    "Cookie: a=%s; b=%s", "Set-Cookie: session=%s; Path=/", "got bearer %s from",
    "http://user:%s@proxy:3128/", "HTTPS_PROXY=http://u:p@%s@proxy", "redis://:%s@host:6379/0", "https://x.example/f?sig=%s&se=1",
    "/f?X-Amz-Signature=%s",
    '"auth": "%s"', "-----BEGIN OPENSSH PRIVATE KEY-----\n%s\n-----END OPENSSH PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n%s",
]
SHAPES = [
    "hf_" + SECRET, "sk-" + SECRET, "sk-proj-" + SECRET, "nvapi-" + SECRET, "ghp_" + SECRET + "ab", "github_pat_" + SECRET,
    "glpat-" + SECRET,
    "dckr_pat_" + SECRET, "xoxb-" + SECRET, "AIza" + SECRET * 2, "AKIA" + "ABCDEFGH12345678", "ASIA" + "ABCDEFGH12345678",
    "eyJhbGciOiJI.eyJzdWIiOiIx." + SECRET,
]
KEPT = [
    "--max-num-batched-tokens 8192", "--max-num-batched-tokens=8192", "--tokenizer moonshotai/Kimi-K3", "--tokenizer-mode=auto",
    "--max-tokens 5",
    "--max-num-batched-tokens\0008192\0", "--tokenizer\0moonshotai/Kimi-K3\0", "--skip-tokenizer-init --port 8000",
    "--return-tokens-as-token-ids --x",
    "VLLM_USE_RUST_FRONTEND=1", "HF_TOKEN_PATH=/root/.cache/huggingface/token", "HF_HOME=/data",
    "cache_keys=12ab34cd56ef", "prefix_key=12ab34cd56ef", "NCCL_IB_HCA==mlx5_0", "PWD=/root",
    "OLDPWD=/home",
    '--speculative-config {"method":"dspark","num_speculative_tokens":8}', '"num_speculative_tokens": 8', '"eos_token": "<|im_end|>"',
    "bos_token: <s>",
    "eos_token_id=163586", "pad_token='[PAD]'", "prompt tokens: 50", "tokens/s: 500", "time per token: 12.5 ms", "kv cache: 12 tokens",
    "CONFIG_TRUSTED_KEYS=y", "CONFIG_ENCRYPTED_KEYS=y", "CONFIG_SYSTEM_TRUSTED_KEYRING=y", "CONFIG_PKCS8_PRIVATE_KEY_PARSER=y",
    "CONFIG_SECRETMEM=y",
    "CONFIG_ASYMMETRIC_KEY_TYPE=y", "CONFIG_CRYPTO_USER_API_HASH=m", "CONFIG_KEYS=y", "CONFIG_HARDLOCKUP_DETECTOR=y",
    "CONFIG_MODULE_SIG_KEY_TYPE_RSA=y",
    "tcp://192.0.2.1:29500", "docker://vllm/vllm-openai:kimi-k3@sha256:aabb", "vllm/vllm-openai@sha256:" + "ab" * 32,
    "http://192.0.2.1:8000/v1",
    "task-0123456789abcdef0123", "disk-0123456789abcdef01", "monkey=banana", "key=1", "exit code=1", "PasswordAuthentication no",
    "passed: 5",
    "ssh_host_rsa_key.pub", "Loaded X.509 cert 'Example: 88f752e560a1e0737e31163a466ad7b70a850c19'", "compass=north", "bypass: on",
    "ExecStart=/usr/bin/vllm serve --max-num-seqs 5 --gpu-memory-utilization 0.95", "GPU-1f2e3d4c-aaaa-bbbb-cccc-0123456789ab",
    '{"token": null, "secret": {"name": "x"}, "password": false, "n": 12}', '"password": ""', "api_key=[]", "api_key=None",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_taken_out(form: str) -> None:
    told = redact(form.replace("%s", SECRET))
    assert SECRET not in told and MASK in told


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("around", ["%s", "login with %s failed", "x=%s,y", '["%s"]', "(%s)"])
def test_a_known_shape_is_taken_out_wherever_it_stands(shape: str, around: str) -> None:
    told = redact(around % shape)
    assert told == around % MASK or shape not in told


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_what_stands_beside_a_secret_stays() -> None:
    text = "vllm serve moonshotai/Kimi-K3 --api-key %s --max-num-batched-tokens 8192 --port 8000"
    assert redact(text % SECRET) == text % MASK
    assert redact("A=1\0HF_TOKEN=%s\0NCCL_DEBUG=INFO\0" % SECRET) == "A=1\0HF_TOKEN=%s\0NCCL_DEBUG=INFO\0" % MASK
    assert redact("--hf-token %s moonshotai/Kimi-K3" % SECRET) == "--hf-token %s moonshotai/Kimi-K3" % MASK


KEYS = st.sampled_from(["token", "password", "api_key", "secret", "name", "auth", "Authorization", "Cookie", "env", "HF_TOKEN"])
STRINGS = st.text(max_size=12) | st.lists(st.sampled_from([
    "token", "HF_TOKEN=", "--api-key", "--hf-token ", "password: ", '"', "'", "\\", "\n", " ", ",", "]", "Authorization: Bearer ", SECRET,
    "hf_" + SECRET,
    "http://u:", "@h", "cookie: ", "?sig=", "-----BEGIN PRIVATE KEY-----", "["]), max_size=6).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)


@example(value="COOKIE:\x1f", indent=None)
@example(value="-----BEGIN PRIVATE KEY-----\\", indent=None)
@given(value=VALUES, indent=st.sampled_from([None, 1]))
@settings(max_examples=300, deadline=None)
def test_json_stays_json(value: object, indent: int) -> None:
    json.loads(redact(json.dumps(value, indent=indent)))


PIECES = st.sampled_from([
    "token", "TOKEN", "api_key", "--api-key", "password", "secret", "=", ":", " ", "\n", "\0", '"', "'", "[", "]", "{", "}", ",", "\\",
    "- ", SECRET, "hf_" + SECRET,
    "bearer ", "://", "@", "authorization", "cookie", "-----BEGIN PRIVATE KEY-----", "eyJ", "null", "1234", MASK])


@given(text=st.text(max_size=200) | st.lists(PIECES, max_size=25).map("".join))
@settings(max_examples=400, deadline=None)
def test_never_raises_and_twice_is_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@pytest.mark.parametrize("text", [
    "a." * 200000 + "token", "-" * 300000 + "token", "a-" * 200000 + "token=", "eyJa-" * 100000, "a" * 500000 + "token",
    "://" + "a" * 100000 + ":b",
    "-----BEGIN " * 30000 + "token private key", "token=[" * 60000, "token= " * 60000, 'token="' * 60000, "--a" * 100000 + "token",
    "://:" * 50000,
    "--api-key a " * 30000, "cookie: " * 60000, "?key=" * 60000, "key" + " " * 300000 + "=",
], ids=lambda text: text[:12])
def test_hostile_text_costs_no_time(text: str) -> None:
    started = time.process_time()
    redact(text)
    assert time.process_time() - started < 5


def test_a_large_journal_costs_little() -> None:
    text = "[ 1234.5678] kernel: NVRM: a usual line of a journal with key and token words, pid=1234, name=python3\n" * 40000
    started = time.process_time()
    assert redact(text) == text
    assert time.process_time() - started < 6
