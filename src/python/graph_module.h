// The part of _native that describes a model's graph to src/graph.
#pragma once

#include <pybind11/pybind11.h>

#include "graph/graph.h"

namespace ort_aie::graph {

// The graph of nodes and values that Python lists, both as dicts:
//   nodes   name, domain, op_type, attributes (int, float, str or list of int, by name), and inputs
//           and outputs: the names of values, empty for an absent one
//   values  name; type, ONNX's number of it (0: not known); shape, a list of int, str or None, or
//           None; constant, an array, or True if its elements are not at hand, or None; wanted
// Arrays are contiguous, have the value's type and shape, and must outlive the graph, which points
// to them.
Graph GraphOf(const pybind11::list& nodes, const pybind11::list& values);

void DefineGraph(pybind11::module_& m);

}  // namespace ort_aie::graph
