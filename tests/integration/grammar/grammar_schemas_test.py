#!/usr/bin/env python3
"""Outputs under the grammar of a JSON Schema are valid: random schemas, random outputs, judged by
an independent validator.

usage: grammar_schemas_test.py WALKER SOURCE_DIR
"""

import decimal
import json
import re
import subprocess
import sys

import jsonschema

from legal_schemas import legal_schemas, sample_values
from schema_generator import generate

SEED = 20260711
OUTPUTS_PER_SCHEMA = 2

# What an output must look like; the calendar (31 February) is not the grammar's business.
FORMAT_PATTERNS = {
    "date": r"\d{4}-\d{2}-\d{2}",
    "time": r"\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})",
    "date-time": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})",
    "email": r".+@.+",
    "ipv4": r"\d{1,3}(\.\d{1,3}){3}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


def format_checker():
    checker = jsonschema.FormatChecker(formats=[])
    for name, pattern in FORMAT_PATTERNS.items():
        expression = re.compile(pattern, re.DOTALL)
        checker.checks(name)(
            lambda value, expression=expression: not isinstance(value, str)
            or expression.fullmatch(value) is not None)
    return checker


def longest_number(text):
    without_strings = re.sub(r'"([^"\\]|\\.)*"', '""', text)
    return max((len(n) for n in re.findall(r"[-+0-9.eE]+", without_strings)), default=0)


def judge(schema, output, checker):
    """The fault of an output, or None."""
    # Limits and numbers as they are written: a double is neither.
    schema = json.loads(json.dumps(schema), parse_float=decimal.Decimal)
    try:
        value = json.loads(output, parse_float=decimal.Decimal)
    except ValueError as error:
        return f"not JSON: {error}"
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
    error = next(validator.iter_errors(value), None)
    if error is not None:
        return f"{error.message[:200]} at {error.json_path}"
    if longest_number(output) > 64:
        return "a number of more than 64 characters"
    return None


def run(walker, tokenizer, schemas, seed):
    lines = "".join(json.dumps(schema) + "\n" for schema in schemas)
    result = subprocess.run([walker, tokenizer, str(seed), str(OUTPUTS_PER_SCHEMA)], input=lines,
                            capture_output=True, encoding="utf-8", errors="replace", timeout=550,
                            check=True)
    # Not splitlines: outputs hold every kind of line end.
    return [json.loads(line) for line in result.stdout.split("\n") if line]


def fulfilled_by(schema, values):
    """The first of the values that the schema takes, in JSON, or None."""
    validator = jsonschema.Draft202012Validator(schema)
    return next((json.dumps(value) for value in values if validator.is_valid(value)), None)


def main():
    walker, source = sys.argv[1:3]
    checker = format_checker()
    values = sample_values()
    faults, num_outputs, num_unenforced, num_unfulfillable = [], 0, 0, 0
    runs = [(f"{source}/models/deepinfer-tiny", generate(325, SEED), SEED),
            (f"{source}/models/deepinfer-tiny", legal_schemas(300, SEED), SEED),
            (f"{source}/tests/data/deepseek_v41", generate(26, SEED + 1), SEED + 1)]
    for tokenizer, schemas, seed in runs:
        answers = run(walker, tokenizer, schemas, seed)
        assert len(answers) == len(schemas), f"{len(answers)} answers for {len(schemas)} schemas"
        for schema, answer in zip(schemas, answers):
            if "error" in answer:
                value = fulfilled_by(schema, values)
                if value is None and answer["error"].startswith("invalid_request"):
                    num_unfulfillable += 1
                else:
                    faults.append((schema, f"{answer['error']}, but fulfilled by {value}", ""))
                continue
            if answer["unenforced"]:
                num_unenforced += 1
                continue
            for output in answer["outputs"]:
                num_outputs += 1
                fault = judge(schema, output, checker)
                if fault:
                    faults.append((schema, fault, output))
    for schema, fault, output in faults[:20]:
        print(f"{fault}\n  schema {json.dumps(schema, ensure_ascii=False)[:600]}\n  output {output[:300]!r}")
    print(f"seed {SEED}: {num_outputs} outputs judged, {num_unenforced} schemas with parts that are "
          f"not enforced, {num_unfulfillable} that nothing fulfils, {len(faults)} faults")
    # A corpus that is mostly skipped would prove nothing.
    return 1 if faults or num_outputs < 900 or num_unfulfillable > 100 else 0


if __name__ == "__main__":
    sys.exit(main())
