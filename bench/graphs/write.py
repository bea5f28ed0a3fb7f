"""write.py ONNX...: bench/graphs/NAME.onnx.xz from what export_models.py --bench (or torch_worker.py ... export) wrote to
.../NAME/model.onnx.

A graph is the exported file without its weights, which `gradc --init=random` does not need, and without the
exporter's stack traces: 500 MB become 17 KB, so that the bench models can be compiled and trained without PyTorch.
"""
import lzma
import sys
from pathlib import Path

import onnx

SMALL = 32  # elements of a float tensor that is kept: epsilons, scales, frequencies
TRACES = ("stack_trace", "fx_node")  # of metadata that says where a node was written


def without_weights(model):
    """The model, its large float tensors now shapes only."""
    for tensor in model.graph.initializer:
        elements = 1
        for n in tensor.dims:
            elements *= n
        if tensor.data_type == onnx.TensorProto.FLOAT and elements > SMALL:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    for node in model.graph.node:
        node.doc_string = ""
        for entry in [e for e in node.metadata_props if e.key.endswith(TRACES)]:
            node.metadata_props.remove(entry)
    return model


def main(paths):
    for path in map(Path, paths):
        graph = without_weights(onnx.load(path)).SerializeToString(deterministic=True)
        target = Path(__file__).parent / f"{path.parent.name}.onnx.xz"
        target.write_bytes(lzma.compress(graph, preset=9 | lzma.PRESET_EXTREME))
        print(f"{target.name}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
