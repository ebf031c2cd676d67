#include "python/file_forms_module.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>

#include "base/error.h"
#include "base/size.h"
#include "ops/weights.h"
#include "q4nx/pack.h"
#include "q4nx/pack_file.h"

namespace py = pybind11;

namespace ort_aie {
namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style>;

void RequireBytesShape(const Bytes& array, const char* name, const Shape& shape) {
  const Shape actual(array.shape(), array.shape() + array.ndim());
  Require(actual == shape, name, " must be ", shape, ", got ", actual);
}

void RequireSizes(FileType type, int64_t n, int64_t k) {
  const q4nx::FileForm& form = q4nx::FileFormOf(type);
  Require(n > 0 && k > 0 && k % form.columns == 0, "N and K must be positive, and K a multiple of ",
          form.columns, " for ", form.name, ", got N=", n, " K=", k);
  q4nx::BytesOfBlocks<Size>(n, k, q4nx::FormOf(type)).As("blocks");
}

py::list FileTable() {
  py::list forms;
  for (const q4nx::FileForm& form : q4nx::kFileForms) {
    py::dict row;
    row["name"] = form.name;
    row["ggml_type"] = form.ggml_type;
    row["columns"] = form.columns;
    row["group"] = form.group;
    row["bits"] = form.bits;
    row["minima"] = form.minima;
    row["block_bytes"] = q4nx::LayoutOfBlock(form).bytes;
    forms.append(row);
  }
  return forms;
}

// rows (N, bytes of a row) as in a file. `tensor` is the name of the tensor in errors.
Bytes PackFileRows(const std::string& type_name, const Bytes& rows, int64_t k,
                   const std::string& tensor) {
  const FileType type = FileTypeNamed(type_name);
  Require(rows.ndim() == 2, "rows must be (N, bytes of a row)");
  const int64_t n = rows.shape(0);
  RequireSizes(type, n, k);
  RequireBytesShape(rows, "rows", {n, q4nx::FileRowBytes(type, k)});
  Bytes blocks(BlocksShape(n, k, q4nx::FormOf(type)));
  uint8_t* out = blocks.mutable_data();
  bool finite = false;
  {
    const py::gil_scoped_release release;
    finite = q4nx::HasFiniteScales(type, rows.data(), n, k);
    if (finite) q4nx::PackFile(type, rows.data(), n, k, out);
  }
  Require(finite, tensor, " has a scale or a minimum that is NaN or infinite");
  return blocks;
}

Bytes UnpackFileRows(const std::string& type_name, const Bytes& blocks, int64_t n, int64_t k) {
  const FileType type = FileTypeNamed(type_name);
  RequireSizes(type, n, k);
  RequireBytesShape(blocks, "blocks", BlocksShape(n, k, q4nx::FormOf(type)));
  Bytes rows({n, q4nx::FileRowBytes(type, k)});
  uint8_t* out = rows.mutable_data();
  const py::gil_scoped_release release;
  q4nx::UnpackFile(type, blocks.data(), n, k, out);
  return rows;
}

py::array_t<float> DequantizeFile(const std::string& type_name, const Bytes& blocks, int64_t n,
                                  int64_t k) {
  const FileType type = FileTypeNamed(type_name);
  RequireSizes(type, n, k);
  RequireBytesShape(blocks, "blocks", BlocksShape(n, k, q4nx::FormOf(type)));
  py::array_t<float> weights({n, k});
  q4nx::Dequantize(blocks.data(), n, k, weights.mutable_data(), q4nx::FormOf(type));
  return weights;
}

}  // namespace

void DefineFileForms(py::module_& m) {
  m.def("file_forms", &FileTable);
  m.def("pack_file", &PackFileRows, py::arg("type"), py::arg("rows").noconvert(), py::arg("k"),
        py::arg("tensor"));
  m.def("unpack_file", &UnpackFileRows, py::arg("type"), py::arg("blocks").noconvert(),
        py::arg("n"), py::arg("k"));
  m.def("dequantize_file", &DequantizeFile, py::arg("type"), py::arg("blocks").noconvert(),
        py::arg("n"), py::arg("k"));
}

}  // namespace ort_aie
