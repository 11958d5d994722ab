"""Random legal JSON Schemas (draft 2020-12) of the kinds that few clients send: every keyword beside
every other, whole numbers written as fractions, `true` and `false` in every place for a schema.
None may be refused unless nothing fulfils it."""

import json
import random

PATTERNS = ["^a", "b$", "[0-9]{2}", "^(?!x)[a-z]+$", "(?<=a)b", "\\bword\\b", "(a)\\1", "^[^\"]$",
            "a{,3}", "x{1,2}y", "^\\d+(\\.\\d+)?$", ""]
NAMES = ["a", "b", "c d", "größe"]


class LegalSchemas:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, probability):
        return self.random.random() < probability

    def count(self, low, high):
        value = self.random.randint(low, high)
        return float(value) if self.chance(0.4) else value

    def limit(self):
        r = self.random
        return r.choice([r.randint(-9, 9), r.uniform(-9, 9), round(r.uniform(-99, 99), 2), 0.5, 2.0,
                         -0.25, 1e-7, 1e19, -1e19, 18446744073709551615])

    def numbers(self, schema):
        low, high = sorted([self.limit(), self.limit()])
        if self.chance(0.7):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.6):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = high
        if self.chance(0.15):
            schema["multipleOf"] = self.random.choice([1, 2, 0.5, 3.0])

    def strings(self, schema):
        if self.chance(0.4):
            schema["minLength"] = self.count(0, 2)
        if self.chance(0.4):
            schema["maxLength"] = self.count(2, 9)
        if self.chance(0.3):
            schema["pattern"] = self.random.choice(PATTERNS)
        if self.chance(0.2):
            schema["format"] = self.random.choice(["date", "uuid", "regex", "color", "ipv4"])

    def arrays(self, schema, depth):
        if self.chance(0.5):
            schema["prefixItems"] = [self.schema(depth - 1)
                                     for _ in range(self.random.randint(1, 3))]
        if self.chance(0.5):
            schema["items"] = self.schema(depth - 1)
        if self.chance(0.4):
            schema["minItems"] = self.count(0, 3)
        if self.chance(0.4):
            schema["maxItems"] = self.count(0, 4)
        if self.chance(0.15):
            schema["contains"] = self.schema(0)
        if self.chance(0.15):
            schema["minContains"] = self.count(0, 3)
        if self.chance(0.1):
            schema["uniqueItems"] = self.chance(0.5)
        if self.chance(0.1):
            schema["unevaluatedItems"] = self.schema(0)

    def objects(self, schema, depth):
        if self.chance(0.7):
            schema["properties"] = {name: self.schema(depth - 1) for name in self.random.sample(
                NAMES, self.random.randint(0, 3))}
        if self.chance(0.4):
            schema["required"] = self.random.sample([*NAMES, "other"], self.random.randint(0, 2))
        if self.chance(0.4):
            schema["additionalProperties"] = self.schema(depth - 1)
        if self.chance(0.2):
            schema["minProperties"] = self.count(0, 3)
        if self.chance(0.2):
            schema["maxProperties"] = self.count(2, 5)
        if self.chance(0.2):
            schema["patternProperties"] = {self.random.choice(PATTERNS[:4]): self.schema(depth - 1)}
        if self.chance(0.2):
            schema["propertyNames"] = self.random.choice(
                [True, False, {"type": ["string", "null"]}, {"maxLength": 4.0}, {"enum": ["a", 1]},
                 {"pattern": "^[a-c]$"}, {"const": "b"}])
        if self.chance(0.1):
            schema["unevaluatedProperties"] = self.schema(0)
        if self.chance(0.1):
            schema["dependentRequired"] = {"a": ["b"]}

    def values(self, schema):
        values = [1, 2.0, "a", None, True, [1], {"a": 1}, 0.5]
        if self.chance(0.5):
            schema["const"] = self.random.choice(values)
        else:
            schema["enum"] = self.random.sample(values, self.random.randint(1, 5))

    def union(self, schema, depth):
        keyword = self.random.choice(["anyOf", "anyOf", "oneOf", "allOf"])
        schema[keyword] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]
        if self.chance(0.1):
            schema["not"] = self.schema(0)

    def schema(self, depth):
        if self.chance(0.12):
            return self.chance(0.6)
        schema = {}
        kinds = ["integer", "number", "string", "array", "object", "boolean", "null"]
        types = self.random.sample(kinds, 1 if self.chance(0.8) else 2)
        if self.chance(0.9):
            schema["type"] = types[0] if len(types) == 1 else types
        if {"integer", "number"} & set(types):
            self.numbers(schema)
        if "string" in types:
            self.strings(schema)
        if "array" in types and depth > 0:
            self.arrays(schema, depth)
        if "object" in types and depth > 0:
            self.objects(schema, depth)
        if self.chance(0.1):
            self.values(schema)
        if depth > 0 and self.chance(0.12):
            self.union(schema, depth)
        if depth == 3 and self.chance(0.2):
            schema["$defs"] = {"d": self.schema(1), "never": False, "any": True}
            name = self.random.choice(["d", "never", "any"])
            schema.setdefault("properties", {})["ref"] = {"$ref": f"#/$defs/{name}"}
        return schema


def legal_schemas(count, seed):
    """`count` different schemas, each true, false or an object."""
    generator = LegalSchemas(seed)
    found = {}
    while len(found) < count:
        schema = generator.schema(3)
        found[json.dumps(schema)] = schema
    return list(found.values())


def sample_values():
    """Values of every shape: where one of them fulfils a schema, it must not be refused."""
    scalars = [None, True, False, 0, 1, 2, -1, 3, -3, 7, -7, 50, -50, 0.5, -0.25, 1.5, 1e-7, "", "a",
               "aa", "b", "12", "abc", "xxy"]
    values = [*scalars, [], {}]
    values += [[item] * n for n in range(1, 5) for item in [*scalars[:9], "a", [], {}]]
    values += [[first, *rest] for first in [*scalars[:12], "a"]
               for second in [None, 1, "a", []] for rest in [[second], [second, 1]]]
    name_sets = [NAMES[:1], NAMES[1:2], NAMES[2:3], NAMES[3:], ["other"], NAMES[:2], NAMES[:3],
                 [*NAMES, "other"], ["a", "other"], ["b", "other"], ["x1"]]
    values += [dict.fromkeys(names, value) for value in [*scalars, [], {}, [1]]
               for names in name_sets]
    return values
