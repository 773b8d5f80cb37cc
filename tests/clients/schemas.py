"""Schemas for structured answers: one per construct, nested combinations, and hand-written ones."""

import itertools

LEAVES = {
    "string": {"type": "string", "maxLength": 8},
    "length": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "alternatives": {"type": "string", "pattern": "^(cat|dog)s?$"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "integer": {"type": "integer", "minimum": -50, "maximum": 120},
    "exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    "number": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "uint8": {"type": "integer", "format": "uint8"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "nullable": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
    "enum": {"enum": ["red", "grün", "青", 3, None, True]},
    "const": {"const": {"kind": "ünïcode", "list": [1, "zwei"]}},
    "any-of": {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 99}]},
    "one-of": {"oneOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]{1,4}$"}]},
    "all-of": {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 8}]},
}


def closed(properties, required=None):
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


WRAPPERS = {
    "bare": lambda leaf: leaf,
    "member": lambda leaf: closed({"value": leaf}),
    "optional": lambda leaf: closed({"id": {"type": "boolean"}, "maybe": leaf}, ["id"]),
    "array": lambda leaf: {"type": "array", "items": leaf, "minItems": 1, "maxItems": 3},
    "tuple": lambda leaf: {"type": "array", "prefixItems": [leaf, {"type": "boolean"}], "items": False, "minItems": 2},
    "reference": lambda leaf: closed({"é": {"$ref": "#/$defs/it"}, "b": {"$ref": "#/$defs/it"}}) | {"$defs": {"it": leaf}},
    "union": lambda leaf: {
        "oneOf": [closed({"kind": {"const": "a"}, "of": leaf}), closed({"kind": {"const": "b"}, "n": {"type": "null"}})]
    },
    "nested": lambda leaf: closed({"x": closed({"y": {"type": "array", "items": closed({"z": leaf}), "maxItems": 2}})}),
    "more": lambda leaf: {
        "type": "object",
        "properties": {"first": leaf},
        "required": ["first"],
        "patternProperties": {"^k[0-9]$": leaf},
        "additionalProperties": False,
    },
}

TREE = {
    "$defs": {"node": closed({"value": {"type": "boolean"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})},
    "$ref": "#/$defs/node",
}

BY_HAND = [
    TREE,
    {"type": "object", "minProperties": 1, "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"maxLength": 3, "type": "string"}}, "required": ["a"], "additionalProperties": {"type": "boolean"}},
    {"type": "array", "items": [{"type": "integer", "maximum": 5, "minimum": 0}, {"const": "x"}], "additionalItems": False},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 20},
    {"allOf": [closed({"a": {"type": "boolean"}}), {"properties": {"a": {"const": True}}}]},
    closed({"straße": {"const": "größe"}, "名前": {"enum": ["太郎", "花子"]}, "😀\n\"": {"type": "null"}}),
    {"type": "string", "pattern": "[0-9]{2}", "maxLength": 6},
    {"title": "described", "description": "d", "default": 1, "examples": [2], "type": "integer", "minimum": 0, "maximum": 3},
]

ALL = [(f"{wrapper}-{leaf}", WRAPPERS[wrapper](LEAVES[leaf])) for wrapper, leaf in itertools.product(WRAPPERS, LEAVES)]
ALL += [(f"hand-{idx}", schema) for idx, schema in enumerate(BY_HAND)]
