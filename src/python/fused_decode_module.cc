// The sizes and contents of buffers that mlir-air's fused decode reads, for `ort-aie
// package-overlay`, and the packer by itself.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "python/npu_module.h"
#include "q4nx/layout.h"
#include "targets/npu/fused_decode/geometry.h"
#include "targets/npu/fused_decode/package.h"
#include "targets/npu/fused_decode/weights.h"
#include "targets/npu/fused_decode/words.h"

namespace py = pybind11;

namespace ort_aie::fused_decode {
namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style>;
using Words = py::array_t<uint32_t, py::array::c_style>;

const Geometry& Named(const std::string& name) {
  const Geometry* geometry = FindGeometry(name);
  Require(geometry != nullptr, "the fused decode does not know the model ", name);
  return *geometry;
}

std::vector<std::string> Models() {
  std::vector<std::string> names;
  for (const Geometry& geometry : Geometries()) names.emplace_back(geometry.name);
  return names;
}

py::dict Describe(const std::string& name) {
  const Geometry& geometry = Named(name);
  py::list phases;
  for (const Phase& phase : geometry.phases()) {
    phases.append(py::make_tuple(phase.row_blocks, phase.column_blocks));
  }
  const Phase head = geometry.head_chunk();
  py::dict all;
  all["hidden"] = geometry.hidden;
  all["heads"] = geometry.heads;
  all["kv_heads"] = geometry.kv_heads;
  all["head_dim"] = geometry.head_dim;
  all["intermediate"] = geometry.intermediate;
  all["layers"] = geometry.layers;
  all["head_chunks"] = geometry.head_chunks;
  all["group"] = geometry.group;
  all["phases"] = phases;
  all["head_chunk"] = py::make_tuple(head.row_blocks, head.column_blocks);
  all["layer_elements"] = geometry.layer_elements();
  all["weight_elements"] = geometry.weight_elements();
  all["rms_elements"] = geometry.rms_elements();
  all["rotary_slab"] = geometry.rotary_slab();
  all["rotary_slabs"] = geometry.rotary_slabs();
  all["logits_offset"] = geometry.logits_offset();
  all["y_elements"] = geometry.y_elements();
  all["region_width"] = geometry.region_width();
  return all;
}

// blocks (row blocks, column blocks of the phase, 5120)
MatrixRows RowsOf(const Bytes& blocks, const char* name, const Phase& phase) {
  Require(blocks.ndim() == 3 && blocks.shape(1) == phase.column_blocks &&
              blocks.shape(2) == q4nx::kBlockBytes,
          name, " must be blocks (rows / 32, ", phase.column_blocks, ", ", q4nx::kBlockBytes, ")");
  return {blocks.data(), blocks.shape(0) * q4nx::kBlockRows};
}

Channels ChannelsOf(int channels) {
  Require(channels == 1 || channels == 2, "a column has 1 or 2 channels, got ", channels);
  return channels == 1 ? Channels::kOne : Channels::kTwo;
}

Bytes PackOneLayer(const std::string& model, int channels, const std::vector<Bytes>& qkv,
                   const Bytes& o, const Bytes& up, const Bytes& gate, const Bytes& down) {
  const Geometry& geometry = Named(model);
  const std::vector<Phase> phases = geometry.phases();
  LayerWeights layer{.qkv = {},
                     .o = RowsOf(o, "o", phases[1]),
                     .up = RowsOf(up, "up", phases[2]),
                     .gate = RowsOf(gate, "gate", phases[2]),
                     .down = RowsOf(down, "down", phases[3])};
  for (const Bytes& part : qkv) layer.qkv.push_back(RowsOf(part, "qkv", phases[0]));
  Bytes packed(geometry.layer_elements() * kElementBytes);
  uint8_t* const out = packed.mutable_data();
  const Channels order = ChannelsOf(channels);
  const py::gil_scoped_release release;
  PackLayer(geometry, order, layer, out);
  return packed;
}

Bytes PackOneHeadChunk(const std::string& model, int channels, const Bytes& head, int64_t chunk) {
  const Geometry& geometry = Named(model);
  const MatrixRows rows = RowsOf(head, "the LM head", geometry.head_chunk());
  Require(chunk >= 0 && chunk < geometry.head_chunks, "the LM head of ", model, " has chunks 0 to ",
          geometry.head_chunks - 1, ", got ", chunk);
  Bytes packed(HeadChunkBytes(geometry));
  uint8_t* const out = packed.mutable_data();
  const Channels order = ChannelsOf(channels);
  const py::gil_scoped_release release;
  PackHeadChunk(geometry, order, rows, chunk, out);
  return packed;
}

Words WordsOfLength(const Words& base, const std::vector<std::pair<size_t, int64_t>>& slopes,
                    int64_t base_length, int64_t positions, int64_t length) {
  WordTemplate from{.words = {base.data(), base.data() + base.size()},
                    .slopes = {},
                    .base_length = base_length,
                    .positions = positions};
  for (const auto& [word, slope] : slopes) {
    Require(word < from.words.size(), "there are ", from.words.size(), " words, got word ", word);
    from.slopes.push_back({word, slope});
  }
  Words words(base.size(), base.data());
  SetLength(from, length, {words.mutable_data(), from.words.size()});
  return words;
}

// (model, channels, positions of the windows) of a package that the runtime accepts.
py::tuple ReadPackageIn(const std::string& folder) {
  const Package package = ReadPackage(folder);
  std::vector<int64_t> positions;
  for (const Window& window : package.windows) positions.push_back(window.positions);
  return py::make_tuple(std::string(package.geometry.name),
                        package.channels == Channels::kOne ? 1 : 2, positions);
}

}  // namespace

void DefineFusedDecode(py::module_& m) {
  m.def("fused_decode_models", &Models);
  m.def("fused_decode_read_package", &ReadPackageIn, py::arg("folder"));
  m.def("fused_decode_geometry", &Describe);
  m.def("fused_decode_kv_offset", [](const std::string& model, int64_t positions, int64_t layer,
                                     bool value, int64_t head, int64_t position) {
    return Named(model).kv_offset(positions, layer, value, head, position);
  });
  m.def("fused_decode_kv_elements", [](const std::string& model, int64_t positions) {
    return Named(model).kv_elements(positions);
  });
  m.def("fused_decode_pack_layer", &PackOneLayer, py::arg("model"), py::arg("channels"),
        py::kw_only(), py::arg("qkv"), py::arg("o").noconvert(), py::arg("up").noconvert(),
        py::arg("gate").noconvert(), py::arg("down").noconvert());
  m.def("fused_decode_pack_head_chunk", &PackOneHeadChunk, py::arg("model"), py::arg("channels"),
        py::arg("head").noconvert(), py::arg("chunk"));
  m.def("fused_decode_words", &WordsOfLength, py::kw_only(), py::arg("base").noconvert(),
        py::arg("slopes"), py::arg("base_length"), py::arg("positions"), py::arg("length"));
}

}  // namespace ort_aie::fused_decode
