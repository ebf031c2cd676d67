// The contents of a design's manifest: the device, the fifos that end at a shim, the workers that
// streams start, the descriptors that streams may use, and the sequences. The Python side writes it
// (ort_aie_ep.npu); only `ParseManifest` reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "npu/expression.h"
#include "npu/registers.h"

namespace ort_aie::npu {

// Longer text is a mistake: the longest manifest of a design has 66,000 bytes.
inline constexpr size_t kMaxManifestBytes = 1 << 20;

struct Fifo {
  std::string name;
  int column;
  int channel;
  Direction direction;
  std::optional<int> packet;  // id of the packets in which the shim wraps this fifo
};

struct Worker {
  std::string name;
  int column;
  int row;
  std::vector<std::string> parameters;
  int64_t address;  // of the parameter words in the tile's data memory, bytes
  int lock;         // set to 1 to start the worker
};

enum class Access { kIn, kOut, kInOut };

struct Argument {
  std::string name;
  Access access;
  Expression bytes;
};

struct Statement;
using Body = std::vector<Statement>;

// Indices point into the manifest's fifos and workers and into the sequence's arguments.
struct LetStatement {
  int slot;
  Expression value;
};
struct RequireStatement {
  Expression condition;
  std::vector<std::variant<std::string, int>> message;  // text, and slots whose value is inserted
};
struct ForStatement {
  int slot;
  Expression count;
  Body body;
};
struct IfStatement {
  Expression condition;
  Body body;
};
struct TransferStatement {
  int fifo;
  int argument;
  Expression offset;
  Expression run;
  std::vector<std::pair<Expression, Expression>> outer;  // (count, stride), outermost first
};
struct StartStatement {
  int worker;
  std::vector<Expression> values;
};
struct WaitStatement {
  std::vector<int> fifos;
  bool everything;  // whether all other transfers are complete as well
};
struct WorkStatement {
  Expression cycles;
};
struct CutStatement {};

struct Statement {
  int path;  // index into the sequence's paths
  std::variant<LetStatement, RequireStatement, ForStatement, IfStatement, TransferStatement,
               StartStatement, WaitStatement, WorkStatement, CutStatement>
      what;
};

struct Sequence {
  std::string name;
  std::vector<std::string> parameters;  // the first slots
  std::vector<Argument> arguments;
  Body body;
  std::vector<std::string> symbols;  // by slot: parameters, loop indices and lets
  std::vector<std::string> paths;    // of the statements, such as body[3].do[0] transfer
};

// See ort_aie_ep/npu/terms/costs.py. In cycles unless another unit is named.
struct Costs {
  double write;
  double mask_write;
  double block_write;
  double block_write_word;
  double address_patch;
  double wait;            // once the token is there
  double gate_idle;       // from a push to an idle channel to its data
  double gate_pipelined;  // to a busy channel: from the end of its task to the next one's data
  double stream;          // bytes per cycle of a channel
};

// A form of Q4NX (q4nx/layout.h).
struct Weights {
  int64_t group = 32;
  bool minima = true;

  friend bool operator==(const Weights&, const Weights&) = default;
};

struct Manifest {
  std::string name;
  Weights weights;  // that the design reads, if it reads quantised ones
  std::string device;
  std::string kernel;
  int generation;
  int rows;
  int columns;
  double clock_hz;
  double ddr_bytes_per_second;  // reads
  double ddr_write_bytes_per_second;
  Costs costs;
  std::vector<Fifo> fifos;
  std::vector<Worker> workers;
  std::vector<std::vector<int>> descriptors;  // by shim column
  std::vector<Sequence> sequences;
};

// Throws Error for text that is not a manifest, naming the key, what was expected and what came.
Manifest ParseManifest(std::string_view json);

// The name of a design's package, and of its kernel in an xclbin of several: with the form of the
// weights that it reads, unless that is the one of shipping files.
std::string PackageName(std::string_view design, const Weights& weights);

}  // namespace ort_aie::npu
