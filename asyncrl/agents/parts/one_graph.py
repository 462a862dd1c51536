"""An update as one compiled function: passes, gradients, clipping, Adam, target networks.

Importing this loads torch's compiler, which takes as long as loading the rest of torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo import config as tracing
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._dynamo.types import GuardFilterEntry
from torch._dynamo.utils import counters
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.runtime.cache_dir_utils import cache_dir

from asyncrl.agents.parts.accelerated import Update

_logger = logging.getLogger(__name__)
_aten = torch.ops.aten


class OneGraph:
    """An update as one compiled function, or eagerly if something in it cannot be compiled.

    It is compiled for the names, dtypes and shapes of a batch, and a second time for any number of
    rows if that varies.
    """

    def __init__(self, update: Update, device: torch.device) -> None:
        self._update = update
        self._graph: Update | None = _compiling(update, device)

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update once; after compiling, `compile_s` is among the numbers."""
        if self._graph is None:
            return self._update(data)
        began, before = time.perf_counter(), counters["stats"]["unique_graphs"]
        try:
            metrics = self._graph(data)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            self._graph, why = None, " ".join(str(error).split("\n")[:2])
            _logger.warning(
                "%s runs as with agent.accelerate=off: %s", self._update.__qualname__, why
            )
            return self._update(data)
        if counters["stats"]["unique_graphs"] == before:
            return metrics
        seconds = time.perf_counter() - began
        details = self._update.__qualname__, seconds, cache_dir()
        _logger.info("compiling %s took %.1f s; the next run finds the code in %s", *details)
        return metrics | {"compile_s": torch.tensor(seconds)}


def _compiling(update: Update, device: torch.device) -> Update:
    tracing.trace_autograd_ops = True
    options: dict[str, Any] = {"guard_filter_fn": _which_may_change}
    if device.type == "cpu":
        # For small networks, calls from Python would take longer than the arithmetic.
        options |= {"cpp_wrapper": True, "post_grad_custom_post_pass": _FewerLoops()}
        options["cpp.dynamic_threads"] = True  # with as many as torch has at the time

    def graph(data: dict[str, Tensor]) -> dict[str, Tensor]:
        return update(data)

    # torch keeps compiled code by code object, and several agents share that of their class.
    graph.__code__ = graph.__code__.replace(co_name=f"compiled_{update.__name__}")
    return torch.compile(graph, fullgraph=True, options=options)


def _which_may_change(checks: Iterable[GuardFilterEntry]) -> list[bool]:
    """Select what each call compares with the compiled code: the batch, and numbers of the agent.

    All else, such as the layers of networks, stays as it is. Comparing it would take a SAC update
    0.2 ms. torch's own state has the number of threads, and code runs with any.
    """
    return [
        check.name.startswith("data")
        or check.guard_type == "SHAPE_ENV"
        or isinstance(check.value, bool | int | float | str | None)
        for check in checks
    ]


class _FewerLoops(CustomGraphPass):
    """Has a CPU do less in its loops over batches.

    Biases are added after products, together with the activation, in one loop over the output.
    Within a product they would first be copied to each row. What is computed by feature, such as a
    normalisation's scale, is computed before the loop over rows that uses it, and not in each row.
    """

    def __call__(self, graph: fx.Graph) -> None:
        for node in [*graph.nodes]:
            if _by_element(node) and 1 < _size(node) <= _widest_use(node) // 8:
                with graph.inserting_after(node):
                    kept = graph.call_function(torch.ops._inductor_test.realize.default, (node,))  # noqa: SLF001
                kept.meta = dict(node.meta)
                node.replace_all_uses_with(kept, lambda user, kept=kept: user is not kept)
            if (multiply := _PRODUCTS.get(node.target)) and not node.kwargs:
                bias, *factors = node.args
                with graph.inserting_before(node):
                    product = graph.call_function(multiply, tuple(factors))
                    total = graph.call_function(_aten.add.Tensor, (product, bias))
                product.meta, total.meta = dict(node.meta), dict(node.meta)
                node.replace_all_uses_with(total)
                graph.erase_node(node)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


def _widest_use(node: fx.Node) -> int:
    """Return the largest size of what is computed from a node, or from a view of it."""
    views = [u for u in node.users if _size(u) == _size(node) and not _by_element(u)]
    return max([0, *map(_size, node.users), *map(_widest_use, views)])


def _size(node: fx.Node) -> int:
    size = node.meta["val"].numel() if isinstance(node.meta.get("val"), Tensor) else 0
    return size if isinstance(size, int) else 0  # not if it varies


def _by_element(node: fx.Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


_PRODUCTS = {_aten.addmm.default: _aten.mm.default, _aten.baddbmm.default: _aten.bmm.default}
