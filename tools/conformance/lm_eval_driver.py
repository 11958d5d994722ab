"""Runs lm-eval's local-completions model over HTTP on a multiple-choice task and writes what it got:
one JSON line per choice with token ids, log-likelihood and greediness. Runs inside lm-eval's venv.

usage: lm_eval_driver.py BASE_URL MODEL_FOLDER CASES OUT
"""

import json
import pathlib
import sys
import tempfile

import lm_eval
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

NUM_QUESTIONS = 50
TASK = """
task: demo_choice
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""


def questions(cases):
    """Four answers each: the right one and those of the next three cases."""
    picked = [json.loads(line) for line in pathlib.Path(cases).read_text("utf-8").splitlines()]
    picked = [case for case in picked if not case.get("tools") and len(case["expect"]) < 200]
    for i in range(NUM_QUESTIONS):
        choices = [picked[(i + k) % len(picked)]["expect"] for k in range(4)]
        right = i % 4
        choices[0], choices[right] = choices[right], choices[0]
        yield {"question": picked[i % len(picked)]["user"], "choices": choices, "answer": right}


def main():
    url, model_folder, cases, out = sys.argv[1:]
    lm = LocalCompletionsAPI(base_url=url + "/v1/completions", model="deepinfer-tiny",
                             tokenizer=model_folder, tokenizer_backend="huggingface",
                             num_concurrent=4, max_length=4096, max_retries=1)
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "test.jsonl"
        data.write_text("".join(json.dumps(q) + "\n" for q in questions(cases)), "utf-8")
        (pathlib.Path(folder) / "demo_choice.yaml").write_text(TASK.format(data=data), "utf-8")
        result = lm_eval.simple_evaluate(model=lm, tasks=["demo_choice"], log_samples=True,
                                         task_manager=TaskManager(include_path=folder),
                                         bootstrap_iters=0)
    with open(out, "w", encoding="utf-8") as file:
        for sample in result["samples"]["demo_choice"]:
            for arguments, (response,) in zip(sample["arguments"], sample["resps"]):
                context, whole = lm._encode_pair(*arguments)
                logprob, greedy = response
                file.write(json.dumps({"context": context, "continuation": whole,
                                       "logprob": float(logprob),
                                       "greedy": str(greedy) == "True"}) + "\n")
    print(json.dumps(result["results"]["demo_choice"]))


if __name__ == "__main__":
    main()
