"""Graph nets of torch_geometric: a batch is one graph of 12 nodes, whose edges are an input or fixed."""
import numpy as np
import torch
from torch import nn
from torch_geometric import nn as gnn

from zoo_torch import RAW, SCRIPT, Row, case_files, floats, integers, main

NODES, EDGES, FEATURES, CLASSES = 12, 30, 8, 5


class OneGraph(nn.Module):
    """A batch of one: convolutions with activations between them."""

    def __init__(self, *layers, edges=None):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        if edges is not None:
            self.register_buffer("edges", edges)

    def forward(self, x, edge_index=None):
        x, edge_index = x[0], self.edges if edge_index is None else edge_index[0]
        for i, layer in enumerate(self.layers):
            x = layer(x.relu() if i else x, edge_index)
        return x[None]


def edges(rng, rows):
    return rng.integers(0, NODES, (rows, 2, EDGES), dtype=np.int64)


def row(name, *makes, is_fixed=False, **kw):
    """Fixed edges are a buffer of the module."""
    fixed = torch.from_numpy(edges(case_files.random(5), 1)[0]) if is_fixed else None
    inputs = {"x": floats(NODES, FEATURES)} | ({} if is_fixed else {"edge_index": edges})
    return Row(name, lambda: OneGraph(*(make() for make in makes), edges=fixed), inputs, labels=integers(CLASSES, NODES), rows=1, **kw)


def two(layer, **kw):
    return lambda: layer(FEATURES, 16, **kw), lambda: layer(16, CLASSES, **kw)


def mlp(a, b):
    return nn.Sequential(nn.Linear(a, 16), nn.ReLU(), nn.Linear(16, b))


MODELS = [
    row("gcn", *two(gnn.GCNConv)),
    row("gcn_no_loops_script", *two(gnn.GCNConv, add_self_loops=False), exporter=SCRIPT),
    row("gcn_no_loops_fresh", *two(gnn.GCNConv, add_self_loops=False), exporter=RAW, is_moved=False),
    row("sage", *two(gnn.SAGEConv), exporter=RAW),
    row("gat", *two(gnn.GATConv), is_fixed=True),
    row("gatv2", *two(gnn.GATv2Conv, add_self_loops=False), exporter=RAW, is_fixed=True),
    row("gin_eps", lambda: gnn.GINConv(mlp(FEATURES, 16), train_eps=True), lambda: gnn.GINConv(mlp(16, CLASSES), train_eps=True), exporter=RAW),
    row("gin_eps_script", lambda: gnn.GINConv(mlp(FEATURES, 16), train_eps=True), lambda: gnn.GINConv(mlp(16, CLASSES), train_eps=True),
        exporter=SCRIPT),
    row("graph_conv", *two(gnn.GraphConv), exporter=RAW),
    row("cheb", *two(gnn.ChebConv, K=2), is_fixed=True),
    row("tag", *two(gnn.TAGConv, K=2), exporter=SCRIPT),
    row("arma", *two(gnn.ARMAConv), exporter=RAW, is_fixed=True),
    row("transformer_conv", *two(gnn.TransformerConv, beta=True)),
    row("gen_learned_t", *two(gnn.GENConv, learn_t=True), exporter=RAW, is_fixed=True),
    row("edge_conv", lambda: gnn.EdgeConv(mlp(2 * FEATURES, 16), aggr="mean"), lambda: gnn.EdgeConv(mlp(32, CLASSES), aggr="mean")),
    row("gated_graph", lambda: gnn.GatedGraphConv(16, 2), lambda: gnn.LEConv(16, CLASSES), exporter=RAW),
    row("res_gated", *two(gnn.ResGatedGraphConv)),
    row("ssg", lambda: gnn.SSGConv(FEATURES, 16, 0.1, K=2, add_self_loops=False), lambda: gnn.LEConv(16, CLASSES), exporter=SCRIPT),
    row("message_norm", lambda: gnn.GENConv(FEATURES, 16, aggr="mean", msg_norm=True, learn_msg_scale=True), lambda: gnn.GraphConv(16, CLASSES)),
    row("film", *two(gnn.FiLMConv), exporter=RAW),
]

if __name__ == "__main__":
    main("torch_geometric", MODELS, ["torch-geometric"])
