#!/usr/bin/env python3
"""Writes schema_list.def: what ONNX itself says of each operator of the default domain.

usage: make_schema.py > schema_list.def      (needs the pinned onnx package)
"""
import onnx.defs as defs

LETTERS = {
    "FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "FLOATS": "F",
    "INTS": "I", "STRINGS": "S", "TENSORS": "T", "GRAPHS": "G", "SPARSE_TENSOR": "p",
    "SPARSE_TENSORS": "P", "TYPE_PROTO": "y", "TYPE_PROTOS": "Y",
}
ANY = 999


def attributes(schema):
    if schema.deprecated:
        return "-"
    words = []
    for name, a in sorted(schema.attributes.items()):
        kind = LETTERS[str(a.type).rsplit(".", 1)[-1]]
        words.append(f"{name}:{kind}{'!' if a.required else ''}")
    return " ".join(words)


def main():
    print("/* Every operator of the default domain in ONNX 1.22: made by make_schema.py.")
    print(" * SCHEMA(name, since, min in, max in, min out, max out, required inputs, attributes);")
    print(" * rows of a name stand together, the newest first. */")
    rows = [s for s in defs.get_all_schemas_with_history() if s.domain == ""]
    rows.sort(key=lambda s: (s.name, -s.since_version))
    for s in rows:
        required = 0
        for i, formal in enumerate(s.inputs[:32]):
            if formal.option == defs.OpSchema.FormalParameterOption.Single:
                required |= 1 << i
        text = (f'SCHEMA("{s.name}", {s.since_version}, {s.min_input}, {min(s.max_input, ANY)}, '
                f'{s.min_output}, {min(s.max_output, ANY)}, 0x{required:x},')
        print(f'{text}\n       "{attributes(s)}")')


if __name__ == "__main__":
    main()
