"""The predictive distribution of rows as an ONNX graph, with all draws in it."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis.export.onnx_primitives import Graph, traced, write
from bnn_ppl.analysis.export.program import Kind, Program, chains_apart, drawn_values, kind_of
from bnn_ppl.analysis.prediction.model_average import moments_of
from bnn_ppl.analysis.prediction.per_draw import Array, Tree, of_draws, predictive_of
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.machines.devices import products_in

FILE = "model.onnx"
_OPSET, _IR = 18, 9  # that runtimes of 2023 know


def check_onnx() -> None:
    """Raise ImportError without the package onnx."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise ImportError(
            "got no package onnx, expected it to write ONNX: pip install onnx, or export as "
            "stablehlo"
        ) from None


def onnx_program(posterior: Posterior, draws: Any) -> tuple[Program, Callable[[dict], bytes]]:
    """Trace what draws predict; give what is known of it, and what writes it.

    The second takes the record of the preparation: the graph's input are rows (rows, ...) in the
    units of the data, in double precision, and so are its answers: "mean", "variance" and
    "epistemic_variance", or "probabilities".

    Raises
    ------
    ValueError
        If a layer or likelihood cannot be written, by its name.
    """
    posterior = predicting(posterior, draws)
    block, weights = drawn_values(posterior, draws)
    block = {site: jnp.asarray(values) for site, values in block.items()}
    kind = kind_of(posterior, block)
    predictive = predictive_of(posterior)
    example = posterior.rows.examples[0]
    shares = weights / weights.sum()

    def of_chain(drawn: Tree, row: Array) -> tuple[Array, Array]:
        at = of_draws(predictive, drawn, row[None], None)
        return jax.vmap(lambda values: moments_of(at(values))[1:])(drawn)

    def of_row(row: Array) -> list[Array]:
        each = [of_chain(drawn, row) for drawn in chains_apart(posterior, block)]
        center, variance = map(jnp.concatenate, zip(*each, strict=True))
        mean = jnp.tensordot(shares, center[:, 0], 1)
        if kind.is_of_classes:
            return [mean]
        epistemic = jnp.tensordot(shares, (center[:, 0] - mean) ** 2, 1)
        return [mean, jnp.tensordot(shares, variance[:, 0], 1) + epistemic, epistemic]

    with products_in(posterior.density.precision):
        program = traced(jax.vmap(of_row), example.shape[1:], example.dtype)
    graph = Graph("x")
    found = Program(b"", [*block.values()], weights, ("ONNX",), kind)

    def content(about: dict[str, Any]) -> bytes:
        return _model(graph, program, about, kind)

    return found, content


def _model(graph: Graph, program: Any, about: dict[str, Any], kind: Kind) -> bytes:
    """Write standardising, the program, and its answers in the units of the data."""
    from onnx import checker, helper

    mean, scale = (np.asarray(about[name], float) for name in ("x_mean", "x_scale"))
    row = graph.add("Div", graph.add("Sub", "x", mean), scale)
    answers = write(graph, program, [graph.cast(row, about["x_type"])])
    names = ("probabilities",) if kind.is_of_classes else ("mean", "variance", "epistemic_variance")
    shapes = [["rows", *map(int, own.aval.shape[1:])] for own in program.jaxpr.outvars]
    for name, answer in zip(names, answers, strict=True):
        _answer(graph, name, graph.cast(answer, np.float64), about)
    double = helper.np_dtype_to_tensor_dtype(np.dtype(float))
    made = helper.make_graph(
        graph.nodes,
        "predict",
        [helper.make_tensor_value_info("x", double, ["rows", *about["x_shape"]])],
        [helper.make_tensor_value_info(*each) for each in zip(names, [double] * 3, shapes)],  # noqa: B905
        graph.constants,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    told = {name: json.dumps(about[name]) for name in ("columns", "classes", "outputs")}
    helper.set_model_props(model, told)
    checker.check_model(model)
    return bytes(model.SerializeToString())


def _answer(graph: Graph, name: str, answer: str, about: dict[str, Any]) -> None:
    """Give an answer its name, in the units of the data."""
    mean, scale = (np.asarray(about[each], float) for each in ("y_mean", "y_scale"))
    if name == "mean":
        answer = graph.add("Add", graph.add("Mul", answer, scale), mean)
    elif "variance" in name:
        answer = graph.add("Mul", answer, scale**2)
    graph.nodes.append(graph.node("Identity", [answer], [name]))


def onnx_predictor(content: bytes, batch_size: int) -> Callable[[np.ndarray], Any] | None:
    """Give a function that predicts rows by onnxruntime; None where that is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def predict(rows: np.ndarray) -> list[Any]:
        parts: Sequence[Tree] = range(0, len(rows), batch_size)
        return [session.run(None, {"x": rows[k : k + batch_size].astype(float)}) for k in parts]

    return predict
