#include "npu/manifest.h"

#include <set>
#include <utility>

#include "base/error.h"
#include "base/platform.h"
#include "npu/json_reader.h"
#include "npu/sequence_parser.h"

namespace ort_aie::npu {
namespace {

constexpr int kFormat = 1;
constexpr int kMaxRows = 6;
// Deeper text is a mistake; parsing it must not exhaust the stack.
constexpr int kMaxJsonDepth = 1024;
constexpr size_t kMaxWorkers = 1024;

Fifo ParseFifo(const std::string& name, const Json& value, const std::string& path, int columns) {
  ObjectReader reader(value, path);
  Fifo fifo{name, static_cast<int>(reader.Integer("column", 0, columns - 1)),
            static_cast<int>(reader.Integer("channel", 0, kShimChannels - 1)), Direction::kMm2s,
            std::nullopt};
  const std::string direction = reader.String("direction");
  if (direction == "S2MM") {
    fifo.direction = Direction::kS2mm;
  } else if (direction != "MM2S") {
    FailValue(reader.PathOf("direction"), "\"MM2S\" or \"S2MM\"", Json(direction));
  }
  if (reader.Take("packet").is_null()) {
    reader.Finish();
    return fifo;
  }
  fifo.packet = static_cast<int>(reader.Integer("packet", 0, kMaxPacketId));
  reader.Finish();
  return fifo;
}

// A channel belongs to one fifo, or to several that have different packet ids.
void CheckChannels(const std::vector<Fifo>& fifos, const std::string& path) {
  for (size_t i = 0; i < fifos.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Fifo &a = fifos[j], &b = fifos[i];
      if (a.column != b.column || a.channel != b.channel || a.direction != b.direction) continue;
      Require(a.packet && b.packet && *a.packet != *b.packet, path, ".", a.name, " and ", path, ".",
              b.name, " share a channel, expected packet ids that keep them apart");
    }
  }
}

Worker ParseWorker(const std::string& name, const Json& value, const std::string& path,
                   const Manifest& manifest) {
  ObjectReader reader(value, path);
  Worker worker{name,
                static_cast<int>(reader.Integer("column", 0, manifest.columns - 1)),
                static_cast<int>(reader.Integer("row", kFirstCoreRow, manifest.rows - 1)),
                {},
                reader.Integer("address", 0, kCoreMemoryBytes - 4),
                static_cast<int>(reader.Integer("lock", 0, kCoreLocks - 1))};
  for (const Json& parameter : reader.List("parameters")) {
    worker.parameters.push_back(ReadString(parameter, reader.PathOf("parameters")));
  }
  const int64_t end = worker.address + 4 * static_cast<int64_t>(worker.parameters.size());
  Require(worker.address % 4 == 0 && end <= kCoreMemoryBytes, reader.PathOf("address"),
          " must be a multiple of 4 with room for ", worker.parameters.size(), " words below ",
          kCoreMemoryBytes, ", got ", worker.address);
  reader.Finish();
  return worker;
}

std::vector<int> ParseDescriptors(const Json& value, const std::string& path) {
  std::set<int> ids;
  for (const Json& id : ReadList(value, path)) {
    const int number = static_cast<int>(ReadInteger(id, path, 0, kShimDescriptors - 1));
    Require(ids.insert(number).second, path, " has descriptor ", number, " twice");
  }
  return {ids.begin(), ids.end()};
}

void ParseColumns(const Json& value, const std::string& path, Manifest& manifest) {
  manifest.descriptors.resize(static_cast<size_t>(manifest.columns));
  ForEachMember(value, path, [&](const std::string& key, const Json& ids, const std::string& at) {
    const bool digit = key.size() == 1 && key[0] >= '0' && key[0] - '0' < manifest.columns;
    Require(digit, at, " is not a shim column, expected 0 to ", manifest.columns - 1);
    manifest.descriptors[static_cast<size_t>(key[0] - '0')] = ParseDescriptors(ids, at);
  });
  for (const Fifo& fifo : manifest.fifos) {
    Require(!manifest.descriptors[static_cast<size_t>(fifo.column)].empty(), path,
            " has no descriptors for column ", fifo.column, ", which the fifo \"", fifo.name,
            "\" uses");
  }
}

Costs ParseCosts(const Json& value, const std::string& path) {
  ObjectReader reader(value, path);
  const Costs costs{
      .write = reader.PositiveNumber("write32"),
      .mask_write = reader.PositiveNumber("maskwrite"),
      .block_write = reader.PositiveNumber("blockwrite"),
      .block_write_word = reader.PositiveNumber("blockwrite_word"),
      .address_patch = reader.PositiveNumber("ddr_patch"),
      .wait = reader.PositiveNumber("tct_wait"),
      .gate_idle = reader.PositiveNumber("gate_idle"),
      .gate_pipelined = reader.PositiveNumber("gate_pipelined"),
      .stream = reader.PositiveNumber("stream"),
  };
  reader.Finish();
  return costs;
}

Weights ParseWeights(const Json& value, const std::string& path) {
  ObjectReader reader(value, path);
  const Weights weights{reader.Integer("group", 32, 256), reader.Integer("minima", 0, 1) == 1};
  const bool known = (weights.group & (weights.group - 1)) == 0;
  if (!known) FailValue(reader.PathOf("group"), "32, 64, 128 or 256", Json(weights.group));
  reader.Finish();
  return weights;
}

Manifest ReadManifest(const Json& value) {
  ObjectReader reader(value, "manifest");
  Manifest manifest{};
  const int64_t format = reader.Integer("format", INT64_MIN, INT64_MAX);
  Require(format == kFormat, "manifest has format ", format, ", but this library reads format ",
          kFormat, "; build the package again with this version");
  manifest.name = reader.String("name");
  manifest.device = reader.String("device");
  manifest.kernel = reader.String("kernel");
  if (reader.Has("weights") && !reader.Take("weights").is_null()) {
    manifest.weights = ParseWeights(reader.Take("weights"), reader.PathOf("weights"));
  }
  manifest.generation =
      static_cast<int>(reader.Integer("generation", kGenerationNpu1, kGenerationNpu2));
  manifest.rows = static_cast<int>(reader.Integer("rows", kFirstCoreRow + 1, kMaxRows));
  manifest.columns = static_cast<int>(reader.Integer("columns", 1, kMaxColumns));
  manifest.clock_hz = reader.PositiveNumber("clock_hz");
  manifest.ddr_bytes_per_second = reader.PositiveNumber("ddr_bytes_per_second");
  manifest.ddr_write_bytes_per_second = reader.PositiveNumber("ddr_write_bytes_per_second");
  manifest.costs = ParseCosts(reader.Take("costs"), reader.PathOf("costs"));
  ForEachMember(reader.Take("fifos"), reader.PathOf("fifos"),
                [&](const std::string& name, const Json& fifo, const std::string& path) {
                  manifest.fifos.push_back(ParseFifo(name, fifo, path, manifest.columns));
                });
  CheckChannels(manifest.fifos, reader.PathOf("fifos"));
  ForEachMember(reader.Take("workers"), reader.PathOf("workers"),
                [&](const std::string& name, const Json& worker, const std::string& path) {
                  Require(manifest.workers.size() < kMaxWorkers, path, " is one of more than ",
                          kMaxWorkers, " workers");
                  manifest.workers.push_back(ParseWorker(name, worker, path, manifest));
                });
  ParseColumns(reader.Take("bds"), reader.PathOf("bds"), manifest);
  ForEachMember(reader.Take("sequences"), reader.PathOf("sequences"),
                [&](const std::string& name, const Json& sequence, const std::string& path) {
                  manifest.sequences.push_back(ParseSequence(sequence, name, path, manifest));
                });
  // The compiler's report. The code that loads the overlay reads it.
  if (!reader.Take("toolchain").is_null()) {
    ForEachMember(reader.Take("toolchain"), reader.PathOf("toolchain"),
                  [](const std::string&, const Json& version, const std::string& path) {
                    ReadString(version, path);
                  });
  }
  if (!reader.Take("uuid").is_null()) reader.String("uuid");
  reader.Finish();
  return manifest;
}

}  // namespace

Manifest ParseManifest(std::string_view json) {
  Require(json.size() <= kMaxManifestBytes, "manifest has ", json.size(),
          " bytes, expected at most ", kMaxManifestBytes);
  // Its lexer puts the locale's decimal point into a number, but only the first byte of it.
  const platform::PointInNumbers point;
  Json value;
  try {
    value = Json::parse(json, [](int depth, Json::parse_event_t, Json&) {
      Require(depth < kMaxJsonDepth, "manifest is nested more than ", kMaxJsonDepth, " deep");
      return true;
    });
  } catch (const Json::exception& error) {  // not JSON text, or a number beyond any double
    Fail(ErrorCode::kInvalidArgument, "manifest is not JSON: ", error.what());
  }
  return ReadManifest(value);
}

std::string PackageName(std::string_view design, const Weights& weights) {
  if (weights == Weights()) return std::string(design);
  return Concat(design, "_", weights.group, weights.minima ? "" : "_symmetric");
}

}  // namespace ort_aie::npu
