"""lm-evaluation-harness, its local-completions model, on a small task over local lines, with the default model.

What it reports must be what the scores of /v1/completions say when they are added up here.
"""

import json
import math
import os
import subprocess
from pathlib import Path

from server import BUILD, LENIENT, ROOT, Server

PACKAGES = ("lm-eval[api]==0.4.13", "transformers==5.24.0")
ENVIRONMENT = ROOT / "build" / "proof" / "lm-eval"
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TASK = ROOT / "tools" / "proof" / "lm_eval"


def version():
    return PACKAGES[0].replace("[api]==", " ")


def write_tokenizer(folder):
    """The model's tokenizer as the files that the harness reads, from the GGUF's vocabulary."""
    import gguf

    fields = gguf.GGUFReader(MODEL).fields
    read = lambda key: fields["tokenizer.ggml." + key].contents()  # noqa: E731
    tokens, kinds, merges = read("tokens"), read("token_type"), read("merges")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind == 3]
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in merges]}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[read("eos_token_id")],
         "bos_token": tokens[read("bos_token_id")], "add_bos_token": False, "model_max_length": 8192}))
    return folder


def log_probability(server, context, continuation):
    """Of the continuation's tokens, by our own sum over /v1/completions."""
    found = server.post_json("/v1/completions", {"model": "x", "prompt": context + continuation, "max_tokens": 0,
                                                 "echo": True, "logprobs": 1, "temperature": 0})
    scored = found["choices"][0]["logprobs"]
    pairs = zip(scored["text_offset"], scored["token_logprobs"])
    return sum(value for offset, value in pairs if offset >= len(context))


def own_accuracy(server, rows):
    right = 0
    for row in rows:
        scores = [log_probability(server, row["sentence"], " " + choice) for choice in row["choices"]]
        assert all(math.isfinite(score) for score in scores), scores
        right += scores.index(max(scores)) == row["answer"]
    return right / len(rows)


def harness_accuracy(server, folder):
    tokenizer = write_tokenizer(folder / "tokenizer")
    arguments = f"model=x,base_url={server.url}/v1/completions,tokenizer={tokenizer},num_concurrent=2,max_retries=1," \
                "tokenized_requests=True"
    command = [str(ENVIRONMENT / "bin" / "lm_eval"), "run", "--model", "local-completions", "--model_args", arguments,
               "--tasks", "everyday", "--include_path", str(TASK), "--batch_size", "4", "--output_path", str(folder / "out")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf"),
                   "OPENAI_API_KEY": "key"}
    done = subprocess.run(command, cwd=TASK, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=1800, check=False)
    (folder / "lm_eval.log").write_text(done.stdout)
    if done.returncode != 0:
        raise RuntimeError(f"lm_eval ended with {done.returncode}: {(done.stdout.splitlines() or [''])[-1]}\n"
                           f"{done.stdout[-4000:]}")
    results = json.loads(next((folder / "out").rglob("results*.json")).read_text())
    return results["results"]["everyday"]["acc,none"]


def run(folder):
    subprocess.run([str(ROOT / "tools" / "proof" / "venv.sh"), str(ENVIRONMENT), *PACKAGES], check=True)
    rows = [json.loads(line) for line in (TASK / "everyday.jsonl").read_text().splitlines()]
    with Server([BUILD / "sparkinfer", "serve"], MODEL, LENIENT, folder / "server.log") as server:
        own, harness = own_accuracy(server, rows), harness_accuracy(server, Path(folder))
    if abs(own - harness) > 0.5 / len(rows):
        raise RuntimeError(f"the harness reports an accuracy of {harness}, our own sum {own}")
    return {"questions": len(rows), "accuracy": round(harness, 3), "chance": 0.25}
