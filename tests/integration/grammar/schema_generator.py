"""Random JSON Schemas of the kinds that clients send: nested objects and arrays, references,
unions, patterns, formats, unicode keys, deep nesting and large enums."""

import random
import string

FORMATS = ["date", "time", "date-time", "email", "ipv4", "uuid"]
PATTERNS = [
    "^[a-z]{2,5}$",
    "^[A-Z][a-z]*$",
    "^\\d{3}-\\d{4}$",
    "^(red|green|blue)$",
    "^[^a-m]{1,4}$",
    "^\\w+@\\w+\\.com$",
    "^a.c$",
    "^$",
    "^[äöü]+$",
    "^(ab|cd){1,3}e?$",
    "^[0-9a-fA-F]{4}(-[0-9a-fA-F]{4})*$",
    # What JSON writes as escapes.
    '^"[a-z]{1,4}"$',
    "^C:\\\\[a-z]{1,4}$",
    "^a\\n(b|\\t)$",
    '^[\\\\"x]{2,4}$',
]
KEYS = ["name", "größe", "名前", "emoji😀", "a b", 'quo"te', "back\\slash", "tab\tkey", "κλειδί", "x/y~z", "", "0", "$ref0"]


class SchemaGenerator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def schema(self, kind):
        make = getattr(self, f"make_{kind}")
        return make()

    def key(self):
        if self.random.random() < 0.4:
            return self.random.choice(KEYS)
        return "".join(self.random.choices(string.ascii_lowercase, k=self.random.randint(1, 9)))

    def scalar(self):
        r = self.random
        return r.choice([
            lambda: {"type": "string"},
            lambda: {"type": "string", "minLength": r.randint(0, 3), "maxLength": r.randint(3, 12)},
            lambda: {"type": "string", "maxLength": r.randint(0, 200)},
            lambda: {"type": "string", "pattern": r.choice(PATTERNS)},
            lambda: {"type": "string", "format": r.choice(FORMATS)},
            lambda: {"type": "integer"},
            lambda: self.bounded_integer(),
            lambda: {"type": "number"},
            lambda: {"type": "number", "minimum": r.randint(-50, 0), "maximum": r.randint(1, 99)},
            lambda: {"type": "boolean"},
            lambda: {"type": "null"},
            lambda: {"enum": self.enum_values(r.randint(1, 6))},
            lambda: {"const": self.enum_values(1)[0]},
            lambda: {"enum": ["text", *self.enum_values(3), 7], "type": ["string", "integer"]},
            lambda: {"type": ["string", "null"]},
            lambda: {"type": ["integer", "boolean"]},
        ])()

    def bounded_integer(self):
        low = self.random.randint(-1000, 1000)
        schema = {"type": "integer"}
        choice = self.random.random()
        if choice < 0.7:
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if choice > 0.3:
            high = low + self.random.randint(2, 5000)
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = high
        return schema

    def enum_values(self, count):
        values, seen = [], set()
        while len(values) < count:
            value = self.random.choice([
                self.key() + str(len(values)), self.random.randint(-99, 10**6), None, True, False,
                self.random.randint(1, 99) / 4, [1, "zwei", None], {"k": ["v", 2]}])
            if repr(value) not in seen:
                seen.add(repr(value))
                values.append(value)
            elif len(seen) > 6:
                values.append(f"value {len(values)}")
        return values

    def array(self, depth):
        r = self.random
        schema = {"type": "array", "items": self.any(depth - 1)}
        if r.random() < 0.5:
            schema["minItems"] = r.randint(0, 2)
            schema["maxItems"] = schema["minItems"] + r.randint(0, 4)
        elif r.random() < 0.2:
            schema = {"type": "array", "prefixItems": [self.scalar(), self.scalar()], "items": False,
                      "minItems": 2}
        return schema

    def object(self, depth, size=None):
        r = self.random
        properties = {}
        for _ in range(size if size is not None else r.randint(1, 5)):
            properties[self.key()] = self.any(depth - 1)
        schema = {"type": "object", "properties": properties,
                  "required": [k for k in properties if r.random() < 0.6]}
        if r.random() < 0.6:
            schema["additionalProperties"] = False
        elif r.random() < 0.3:
            schema["additionalProperties"] = {"type": "integer"}
        if "additionalProperties" not in schema and r.random() < 0.3:
            schema["required"].append("only required")
        return schema

    def any(self, depth):
        roll = self.random.random()
        if depth <= 0 or roll < 0.45:
            return self.scalar()
        if roll < 0.7:
            return self.object(depth)
        if roll < 0.85:
            return self.array(depth)
        return {"anyOf": [self.any(depth - 1) for _ in range(self.random.randint(2, 3))]}

    # The kinds.

    def make_object(self):
        return self.object(3)

    def make_scalar(self):
        return self.scalar()

    def make_array(self):
        return self.array(3)

    def make_union(self):
        return {"anyOf": [self.any(2) for _ in range(self.random.randint(2, 4))]}

    def make_one_of(self):
        # Told apart by a constant, as clients write them.
        return {"oneOf": [
            {"type": "object", "additionalProperties": False, "required": ["kind", "value"],
             "properties": {"kind": {"const": f"k{i}"}, "value": self.any(1)}}
            for i in range(self.random.randint(2, 4))]}

    def make_references(self):
        defs = {f"d{i}": self.any(1) for i in range(3)}
        defs["größe/x"] = self.scalar()
        schema = self.object(1)
        for i in range(3):
            schema["properties"][f"r{i}"] = {"$ref": f"#/$defs/d{i}"}
        schema["properties"]["u"] = {"$ref": "#/$defs/größe~1x"}
        schema["required"] = ["r0", "u"]
        schema["$defs"] = defs
        return schema

    def make_recursive(self):
        return {"$defs": {"node": {
            "type": "object", "additionalProperties": False, "required": ["value"],
            "properties": {"value": self.scalar(),
                           "children": {"type": "array", "items": {"$ref": "#/$defs/node"},
                                        "maxItems": 2},
                           "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
                "$ref": "#/$defs/node"}

    def make_deep(self):
        schema = self.scalar()
        for level in range(self.random.randint(8, 30)):
            if level % 3 == 2:
                schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 2}
            else:
                schema = {"type": "object", "properties": {self.key(): schema},
                          "additionalProperties": False}
                schema["required"] = list(schema["properties"])
        return schema

    def make_large_enum(self):
        values = self.enum_values(self.random.randint(100, 400))
        return {"type": "object", "properties": {"choice": {"enum": values}}, "required": ["choice"],
                "additionalProperties": False}

    def make_wide(self):
        return self.object(1, size=self.random.randint(15, 40))

    def make_unicode(self):
        keys = self.random.sample(KEYS, 6)
        return {"type": "object", "properties": {k: self.scalar() for k in keys}, "required": keys,
                "additionalProperties": False}

    def make_map(self):
        return {"type": "object", "additionalProperties": self.any(1)}

    def make_bare(self):
        return self.random.choice([
            {"type": "object"}, {"type": "array"}, {},
            {"type": "object", "properties": {"a": {"type": "object"}, "b": {"type": "array"}},
             "required": ["a", "b"]}])


KINDS = [name[len("make_"):] for name in dir(SchemaGenerator) if name.startswith("make_")]


def generate(count, seed):
    """`count` schemas; every kind occurs equally often."""
    generator = SchemaGenerator(seed)
    return [generator.schema(KINDS[i % len(KINDS)]) for i in range(count)]
