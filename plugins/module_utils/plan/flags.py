# Copyright (c) inferops.vllm contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The flags that ``vllm serve`` knows: their names, and the kind of value that each takes.

Read from the argument parser of vLLM 0.32.0 on 2026-11-29; help texts and defaults are left out.
A line of the table is ``--flag,alias kind[+|?] choice|choice``:

* ``bool``: ``--flag`` and ``--no-flag``; ``bare``: the flag alone; both take no value;
* ``int``, ``float``, ``size`` (an int that may end in k, K, m, M, g, G …), ``text``, ``json`` (an object or a list),
  ``choice`` (one of the words);
* ``+`` takes several values, ``?`` takes one or none.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

VERSION = "0.32.0"
SOURCE = "https://docs.vllm.ai/en/v0.32.0/cli/serve.html"
DATE = "2026-11-29"


class Flag(NamedTuple):
    """One flag.

    Attributes:
        name: with its dashes, in the positive form.
        kind: see the module's text.
        several: takes more than one value.
        optional: may stand without a value.
        choices: allowed words of kind ``choice``, and words besides numbers of kind ``size``.
    """

    name: str
    kind: str
    several: bool
    optional: bool
    choices: Tuple[str, ...]


class Named(NamedTuple):
    """A flag as somebody wrote it: `negated` when it was ``--no-…``."""

    flag: Flag
    negated: bool


CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters except the tab, and what else ends a line for some reader."""
_SIZE = re.compile(r"[0-9]{1,18}(\.[0-9]{1,6})?[kKmMgGtT]?\Z")
_INT = re.compile(r"-?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE]-?[0-9]{1,3})?\Z")


def table() -> Dict[str, Flag]:
    """All flags by positive name and by alias; parsed once."""
    if not _CACHE:
        for line in _TABLE.replace("\n  |", "|").split("\n"):
            words = line.split(" ")
            if len(words) < 2:
                continue
            names = words[0].split(",")
            kind = words[1].rstrip("+?")
            choices = tuple(words[2].split("|")) if len(words) > 2 else ()
            flag = Flag(names[0], kind, words[1].endswith("+"), words[1].endswith("?"), choices)
            for name in names:
                _CACHE[name] = flag
    return _CACHE


_CACHE: Dict[str, Flag] = {}


def find(word: str) -> Optional[Named]:
    """The flag that `word` names: ``--max-num-seqs``, ``max_num_seqs``, ``no-enable-prefix-caching``, ``-tp``; None for no flag."""
    known = table()
    if word in known:
        return Named(known[word], False)
    name = "--" + word.lstrip("-").replace("_", "-")
    if name in known:
        return Named(known[name], False)
    positive = "--" + name[5:] if name.startswith("--no-") else ""
    if positive in known and known[positive].kind == "bool":
        return Named(known[positive], True)
    return None


def problem(flag: Flag, value: str) -> str:
    """Why `value` is not one of the flag's kind, empty when it is; for ``bool`` and ``bare`` any value is wrong."""
    if flag.kind in ("bool", "bare"):
        return "takes no value"
    if flag.kind == "int":
        return "" if _INT.match(value) else "takes a whole number"
    if flag.kind == "float":
        return "" if _FLOAT.match(value) else "takes a number"
    if flag.kind == "size":
        return "" if _SIZE.match(value) or value in flag.choices else "takes a whole number, such as 32768 or 32K"
    if flag.kind == "choice":
        return "" if value in flag.choices else "takes one of %s" % ", ".join(flag.choices)
    if flag.kind == "json":
        try:
            made = json.loads(value)
        except (ValueError, RecursionError):
            made = None
        return "" if isinstance(made, (dict, list)) else "takes a JSON object"
    return "" if value and not CONTROL.search(value) else "takes one line of text"


def near(word: str) -> List[str]:
    """Up to three flags whose names are like `word`, for a message."""
    import difflib

    name = "--" + word.lstrip("-").replace("_", "-")
    return difflib.get_close_matches(name, [key for key in table() if key.startswith("--")], 3, 0.75)


def render(name: str, value: Any) -> List[str]:
    """Words of one flag in argv: True → the flag, False → its ``--no-`` form, else the flag and its value or values."""
    if value is True:
        return [name]
    if value is False:
        return ["--no-" + name[2:]]
    if isinstance(value, (list, tuple)):
        return [name] + [str(item) for item in value]
    return [name, str(value)]


_TABLE = """\
--additional-config json
--aggregate-engine-logging bare
--all2all-backend choice allgather_reducescatter|deepep_high_throughput|deepep_low_latency|deepep_v2|flashinfer_all2allv
  |flashinfer_nvlink_one_sided|flashinfer_nvlink_two_sided|moonep|mori_high_throughput|mori_low_latency|naive|nixl_ep|pplx
--allow-credentials bool
--allow-deprecated-quantization bool
--allowed-headers json
--allowed-local-media-path text
--allowed-media-domains text+
--allowed-methods json
--allowed-origins json
--anthropic-disabled-thinking-effort choice auto|high|low|max|medium|none|xhigh
--api-key text+
--api-server-count,-asc int
--async-scheduling bool
--attention-backend text
--attention-config,-ac json
--aux-output-config json
--block-size int
--chat-template text
--chat-template-content-format choice auto|openai|string
--code-revision text
--cohere-format text
--cohere-is-reasoning-model bool
--collect-detailed-traces choice+ all|model|worker
--compilation-config,-cc json
--config text
--config-format text
--convert choice auto|classify|embed|none
--cp-kv-cache-interleave-size int
--cpu-distributed-timeout-seconds int
--cpu-offload-gb float
--cpu-offload-params text+
--cudagraph-capture-sizes int+
--cudagraph-metrics bool
--custom-histogram-buckets text
--data-parallel-address,-dpa text
--data-parallel-backend,-dpb text
--data-parallel-external-lb,-dpe bool
--data-parallel-hybrid-lb,-dph bool
--data-parallel-multi-port-external-lb,-dpm bare
--data-parallel-rank,-dpn int
--data-parallel-rpc-port,-dpp int
--data-parallel-size,-dp int
--data-parallel-size-local,-dpl int
--data-parallel-start-rank,-dpr int
--data-parallel-supervisor-port int
--dbo-decode-token-threshold int
--dbo-prefill-token-threshold int
--dcp-comm-backend choice a2a|ag_rs
--dcp-kv-cache-interleave-size int
--dcp-q-replicate bool
--decode-context-parallel-size,-dcp int
--default-chat-template-kwargs json
--default-mm-loras text
--device-ids text
--diffusion-config,-dc json
--disable-access-log-for-endpoints text
--disable-cascade-attn bool
--disable-chunked-mm-input bool
--disable-custom-all-reduce bool
--disable-fastapi-docs bool
--disable-hybrid-kv-cache-manager bool
--disable-log-stats bare
--disable-nccl-for-dp-synchronization bool
--disable-sliding-window bool
--disable-uvicorn-access-log bool
--distributed-executor-backend text
--distributed-timeout-seconds int
--download-dir text
--dp-supervisor-probe-failure-threshold int
--dp-supervisor-probe-interval-s float
--dp-supervisor-probe-timeout-s float
--dp-sync-interval int
--dtype choice auto|bfloat16|float|float16|float32|half
--ec-manager-config json
--ec-transfer-config json
--elastic-ep-max-dp-size int
--enable-auto-tool-choice bool
--enable-batch-sharded-sampling bool
--enable-chunked-prefill bool
--enable-cumem-allocator bool
--enable-dbo bool
--enable-elastic-ep bool
--enable-ep-weight-filter bool
--enable-eplb bool
--enable-expert-parallel,-ep bool
--enable-fault-tolerance bool
--enable-flash-late-interaction bool
--enable-flashinfer-autotune bool
--enable-force-include-usage bool
--enable-hc-sp bool
--enable-layerwise-nvtx-tracing bool
--enable-log-deltas bool
--enable-log-outputs bool
--enable-log-requests bool
--enable-logging-iteration-details bool
--enable-lora bool
--enable-mamba-cache-stochastic-rounding bool
--enable-mamba-shared-prefix-checkpoint bool
--enable-mfu-metrics bool
--enable-mixed-moe-lora-format bool
--enable-mm-embeds bool
--enable-moe-shared-loras bool
--enable-nccl-comm-suspend bool
--enable-offline-docs bool
--enable-per-request-metrics bool
--enable-prefix-caching bool
--enable-prompt-embeds bool
--enable-prompt-tokens-details bool
--enable-request-id-headers bool
--enable-return-routed-experts bool
--enable-scale-out bool
--enable-server-load-tracking bool
--enable-shm-tensor-arena bool
--enable-sleep-mode bool
--enable-ssl-refresh bool
--enable-tokenizer-info-endpoint bool
--enable-tower-connector-lora bool
--enable-trace-replay bool
--enforce-eager bool
--engram-config json
--eplb-config json
--exclude-tools-when-tool-choice-none bool
--expert-placement-strategy choice linear|round_robin
--fail-on-environ-validation bool
--fault-tolerance-config json
--fingerprint-mode choice custom|full|hash|none
--fingerprint-value text
--fully-sharded-loras bool
--gdn-prefill-backend choice flashinfer|triton|cutedsl|aiter_flydsl
--generation-config text
--gpu-memory-utilization,--device-memory-utilization float
--grpc bare
--grpc-port int
--h11-max-header-count int
--h11-max-incomplete-event-size int
--headless bare
--help,-h bare
--hf-config-path text
--hf-overrides json
--hf-token text?
--host text
--ignore-patterns text+
--interleave-mm-strings bool
--io-processor-plugin text
--ir-op-priority json
--jit-monitor-mode choice error|warn
--jit-monitor-verbose bool
--kda-decode-backend choice auto|native|flashinfer|triton
--kda-prefill-backend choice auto|triton|flashkda|flashinfer|fused
--kernel-config json
--kv-cache-dtype choice auto|bfloat16|float16|fp8|fp8_ds_mla|fp8_e4m3|fp8_e5m2|fp8_inc|fp8_per_token_head|int4_per_token_head
  |int8_per_token_head|nvfp4|nvfp4_4over6|nvfp4_ds_mla|turboquant_3bit_nc|turboquant_4bit_nc|turboquant_k3v4_nc|turboquant_k8v4
  |ultraquant_4bit
--kv-cache-dtype-skip-layers text+
--kv-cache-memory-bytes size
--kv-cache-metrics bool
--kv-cache-metrics-sample float
--kv-events-config json
--kv-offloading-backend choice lmcache|native
--kv-offloading-size text
--kv-sharing-fast-prefill bool
--kv-transfer-config json
--language-model-only bool
--limit-mm-per-prompt json
--linear-backend choice aiter|auto|b12x|conch|cutlass|deep_gemm|emulation|exllama|fbgemm|flashinfer_b12x|flashinfer_cudnn
  |flashinfer_cutedsl|flashinfer_cutlass|flashinfer_trtllm|humming|machete|marlin|torch|triton|xpu|xpu_woq
--load-format text
--log-config-file text
--log-error-stack bool
--log-level choice CRITICAL|ERROR|WARNING|INFO|DEBUG|NOTSET
--logging-config json
--logits-processors text+
--logprobs-mode choice processed_logits|processed_logprobs|raw_logits|raw_logprobs
--long-prefill-token-threshold int
--long-prefill-token-threshold-adaptive bool
--lora-dtype choice auto|bfloat16|float16
--lora-modules text+
--lora-target-modules text+
--mamba-backend text
--mamba-block-size int
--mamba-cache-dtype choice auto|bfloat16|float16|float32
--mamba-cache-mode choice align|none
--mamba-cache-philox-rounds int
--mamba-ssm-cache-dtype choice auto|bfloat16|float16|float32
--mamba-ssu-algorithm choice auto|horizontal|simple|vertical
--master-addr text
--master-port int
--max-cpu-loras int
--max-cudagraph-capture-size int
--max-log-len int
--max-logprobs int
--max-lora-cls-labels text
--max-lora-rank choice 1|8|16|32|64|128|256|320|512
--max-loras int
--max-model-len size auto
--max-num-active-seqs int
--max-num-batched-tokens size
--max-num-queued-reqs int
--max-num-queued-tokens int
--max-num-scheduled-tokens int
--max-num-seqs int
--max-parallel-loading-workers int
--media-io-kwargs json
--middleware text
--mm-device-do-normalize bool
--mm-encoder-attn-backend text
--mm-encoder-attn-dtype choice fp8
--mm-encoder-fp8-scale-path text
--mm-encoder-fp8-scale-save-margin float
--mm-encoder-fp8-scale-save-path text
--mm-encoder-only bool
--mm-encoder-tp-mode choice data|weights
--mm-hasher-algorithm choice blake3|sha256|sha512
--mm-ipc-gpu-memory-gb float
--mm-processor-cache-gb float
--mm-processor-cache-type choice lru|shm
--mm-processor-device choice auto|cpu
--mm-processor-kwargs json
--mm-shm-cache-max-object-size-mb int
--mm-tensor-ipc choice direct_rpc|torch_shm
--model text
--model-class-overrides json
--model-impl text
--model-loader-extra-config json
--moe-backend choice aiter|aiter_mega_moe|aiter_triton_mxfp4_bf16|auto|b12x|batched_triton|cutlass|deep_gemm|deep_gemm_mega_moe
  |emulation|flashinfer_b12x|flashinfer_cutedsl|flashinfer_cutlass|flashinfer_moe_ep_cutedsl|flashinfer_moe_ep_mega_deep_gemm
  |flashinfer_trtllm|flydsl|hpc|humming|marlin|rdna3|triton|triton_unfused
--nnodes,-n int
--node-rank,-r int
--num-gpu-blocks-override int
--numa-bind bool
--numa-bind-cpus text+
--numa-bind-nodes text+
--offload-backend choice auto|prefetch|uva
--offload-group-size int
--offload-num-in-group int
--offload-params text+
--offload-prefetch-step int
--optimization-level text
--otlp-traces-endpoint text
--override-generation-config json
--per-request-spec-decode-metrics choice detailed|none|summary
--performance-mode choice balanced|interactivity|throughput
--pipeline-parallel-size,-pp int
--pooler-config json
--port int
--prefill-context-parallel-size,-pcp int
--prefill-schedule-interval int
--prefix-cache-retention-interval int
--prefix-caching-hash-algo choice sha256|sha256_cbor|xxhash|xxhash_cbor
--prefix-match-unit text
--profiler-config json
--pt-load-map-location json
--quantization,-q text
--quantization-config json
--ray-workers-use-nsight bool
--reasoning-config json
--reasoning-parser text
--reasoning-parser-plugin text
--renderer-num-workers int
--replayssm-buffer-len int
--response-role text
--return-sampling-mask bool
--return-tokens-as-token-ids bool
--revision text
--root-path text
--runner choice auto|draft|generate|pooling
--safetensors-load-strategy choice eager|lazy|prefetch|torchao
--safetensors-prefetch-block-size size
--safetensors-prefetch-num-threads int
--scheduler-cls text
--scheduler-reserve-full-isl bool
--scheduling-policy choice fcfs|priority
--seed int
--served-model-name text+
--show-hidden-metrics-for-version text
--shutdown-timeout int
--skip-mm-profiling bool
--skip-tokenizer-init bool
--sleep-mode-offload-cudagraph bool
--sleep-preserve-parameter-names text+
--sparse-indexer-topk-backend choice aiter|auto|cooperative|deep_select|flashinfer|per_row|persistent|torch
--spec-method choice bailing_hybrid_mtp|bailing_hybrid_v3_mtp|custom_class|deepseek_mtp|dflash|dots3_note_mtp|draft_model|dspark
  |eagle|eagle3|ernie_mtp|exaone4_5_mtp|exaone_moe_mtp|extract_hidden_states|gemma4_mtp|glm4_moe_lite_mtp|glm4_moe_mtp
  |glm5_next_mtp|glm_ocr_mtp|hy_v3_mtp|hy_v4_mtp|inkling_mtp|kimi_k3_mtp|longcat_flash_mtp|medusa|mimo_mtp|mimo_v2_mtp
  |minimax_m3_mtp|mlp_speculator|mtp|nemotron_h_mtp|ngram|ngram_gpu|pangu_ultra_moe_mtp|qwen3_5_mtp|qwen3_next_mtp|qwen4_exp_mtp
  |step3p5_mtp|suffix
--spec-model text
--spec-tokens int
--specialize-active-lora bool
--speculative-config,-sc json
--sse-keep-alive-interval int
--ssl-ca-certs text
--ssl-cert-reqs int
--ssl-certfile text
--ssl-ciphers text
--ssl-keyfile text
--stream-interval int
--structured-outputs-config json
--swa-bounded-replay bool
--tensor-parallel-size,-tp int
--tokenizer text
--tokenizer-mode text
--tokenizer-revision text
--tokens-only bool
--tool-call-parser text
--tool-parser-plugin text
--tool-server text
--tool-strict-level choice auto|function|parameter
--trust-remote-code bool
--trust-request-chat-template bool
--trust-request-mm-kwargs bool
--ubatch-size int
--uds text
--use-fp64-gumbel bool
--use-replayssm bool
--use-tqdm-on-load bool
--uvicorn-log-level choice critical|debug|error|info|trace|warning
--video-pruning-method choice evs|vidcom2
--video-pruning-rate text
--watermark float
--watermark-config json
--weight-transfer-config json
--worker-cls text
--worker-extension-cls text
"""
