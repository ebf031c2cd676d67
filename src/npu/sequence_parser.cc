#include "npu/sequence_parser.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ort_aie::npu {
namespace {

// Deeper trees are a mistake; parsing them must not exhaust the stack.
constexpr int kMaxDepth = 256;
// The most nested for and if blocks: the path of each statement names them all.
constexpr size_t kMaxBlocks = 64;
constexpr size_t kMaxSymbols = 1024;
constexpr size_t kMaxArguments = 64;

template <typename Named>
int IndexOf(const std::vector<Named>& entries, const std::string& name, const std::string& path,
            const char* kind) {
  const auto found = std::ranges::find(entries, name, &Named::name);
  if (found == entries.end()) {
    std::string known;
    for (const Named& entry : entries) known += (known.empty() ? "" : ", ") + entry.name;
    Fail(ErrorCode::kInvalidArgument, path, " names the ", kind, " \"", name,
         "\", expected one of: ", known);
  }
  return static_cast<int>(found - entries.begin());
}

class SequenceParser {
 public:
  SequenceParser(const Manifest& manifest, Sequence& sequence)
      : manifest_(manifest), sequence_(sequence) {}

  void Parse(const Json& value, const std::string& path) {
    ObjectReader reader(value, path);
    prefix_ = path + ".";
    for (const Json& parameter : reader.List("parameters")) {
      const std::string name = ReadString(parameter, reader.PathOf("parameters"));
      Require(Find(name) == nullptr, reader.PathOf("parameters"), " has \"", name, "\" twice");
      Declare(name);
      sequence_.parameters.push_back(name);
    }
    for (const Json& argument : reader.List("arguments")) {
      ParseArgument(argument,
                    Concat(reader.PathOf("arguments"), "[", sequence_.arguments.size(), "]"));
    }
    sequence_.body = ParseBody(reader.List("body"), "body");
    reader.Finish();
  }

 private:
  struct Symbol {
    std::string name;
    int slot;
    size_t block;  // the depth of the block that declared it
  };

  void ParseArgument(const Json& value, const std::string& path) {
    ObjectReader reader(value, path);
    Require(sequence_.arguments.size() < kMaxArguments, path, " is one of more than ",
            kMaxArguments, " arguments");
    Argument argument{reader.String("name"), Access::kIn,
                      ParseExpression(reader.Take("bytes"), reader.PathOf("bytes"))};
    Require(std::ranges::find(sequence_.arguments, argument.name, &Argument::name) ==
                sequence_.arguments.end(),
            path, " repeats the argument \"", argument.name, "\"");
    const std::string direction = reader.String("direction");
    if (direction == "out") {
      argument.access = Access::kOut;
    } else if (direction == "inout") {
      argument.access = Access::kInOut;
    } else if (direction != "in") {
      FailValue(reader.PathOf("direction"), "\"in\", \"out\" or \"inout\"", Json(direction));
    }
    reader.Finish();
    sequence_.arguments.push_back(std::move(argument));
  }

  // --- symbols -----------------------------------------------------------------------------------

  const Symbol* Find(const std::string& name) const {
    const auto found = std::find_if(symbols_.rbegin(), symbols_.rend(),
                                    [&](const Symbol& symbol) { return symbol.name == name; });
    return found == symbols_.rend() ? nullptr : &*found;
  }

  int Declare(const std::string& name) {
    Require(sequence_.symbols.size() < kMaxSymbols, prefix_, "\"", name, "\" is one of more than ",
            kMaxSymbols, " symbols");
    const int slot = static_cast<int>(sequence_.symbols.size());
    symbols_.push_back({name, slot, depth_});
    sequence_.symbols.push_back(name);
    return slot;
  }

  // A name may be set again in the block that declared it. In an inner block it would be unclear
  // which of the two holds afterwards.
  int DeclareInBlock(const std::string& name, const std::string& path) {
    const Symbol* known = Find(name);
    Require(known == nullptr || known->block == depth_, prefix_, path, " gives the name \"", name,
            "\" again, which already has a value outside of this block");
    return Declare(name);
  }

  Expression ParseExpression(const Json& value, const std::string& path, int depth = 0) {
    Require(depth < kMaxDepth, path, " is nested more than ", kMaxDepth, " deep");
    if (value.is_number_integer()) {
      return Expression::Constant(ReadInteger(value, path, INT64_MIN, INT64_MAX));
    }
    if (value.is_string()) {
      const Symbol* symbol = Find(value.get<std::string>());
      Require(symbol != nullptr, path, " names the symbol ", Shown(value),
              ", which has no value here");
      return Expression::Symbol(symbol->slot);
    }
    if (!value.is_array() || value.size() != 3 || !value[0].is_string()) {
      FailValue(path, "an integer, a symbol or [operator, left, right]", value);
    }
    Expression left = ParseExpression(value[1], path, depth + 1);
    Expression right = ParseExpression(value[2], path, depth + 1);
    try {
      return Expression::Binary(OperatorNamed(value[0].get<std::string>()), std::move(left),
                                std::move(right));
    } catch (const Error& error) {
      Fail(error.code(), path, ": ", error.what());
    }
  }

  Expression TakeExpression(ObjectReader& reader, const char* key) {
    return ParseExpression(reader.Take(key), reader.PathOf(key));
  }

  // --- statements --------------------------------------------------------------------------------

  Body ParseBody(const Json& list, const std::string& path) {
    Body body;
    for (size_t i = 0; i < list.size(); ++i) {
      body.push_back(ParseStatement(list[i], Concat(path, "[", i, "]")));
    }
    return body;
  }

  // The block of a for or if. Names declared in it end with it.
  Body ParseBlock(ObjectReader& reader, const std::string& path) {
    Require(depth_ <= kMaxBlocks, prefix_, path, " is nested more than ", kMaxBlocks, " deep");
    Body body = ParseBody(reader.List("do"), path + ".do");
    while (!symbols_.empty() && symbols_.back().block == depth_) symbols_.pop_back();
    --depth_;
    return body;
  }

  Statement ParseStatement(const Json& value, const std::string& path) {
    ObjectReader reader(value, prefix_ + path);
    const size_t at = sequence_.paths.size();
    sequence_.paths.push_back(path);
    Statement statement{static_cast<int>(at), ParseKind(reader, path)};
    reader.Finish();
    return statement;
  }

  decltype(Statement::what) ParseKind(ObjectReader& reader, const std::string& path) {
    if (reader.Has("let")) {
      Expression bound = TakeExpression(reader, "value");
      return LetStatement{DeclareInBlock(reader.String("let"), path), std::move(bound)};
    }
    if (reader.Has("require")) {
      return RequireStatement{TakeExpression(reader, "require"),
                              ParseMessage(reader.String("message"), reader.PathOf("message"))};
    }
    if (reader.Has("for")) {
      Expression count = TakeExpression(reader, "count");
      const std::string index = reader.String("for");
      ++depth_;
      const int slot = DeclareInBlock(index, path);
      return ForStatement{slot, std::move(count), ParseBlock(reader, path)};
    }
    if (reader.Has("if")) {
      Expression condition = TakeExpression(reader, "if");
      ++depth_;
      return IfStatement{std::move(condition), ParseBlock(reader, path)};
    }
    if (reader.Has("transfer")) return ParseTransfer(reader);
    if (reader.Has("start")) return ParseStart(reader);
    if (reader.Has("wait")) return ParseWait(reader, "wait", true);
    if (reader.Has("arrive")) return ParseWait(reader, "arrive", false);
    if (reader.Has("work")) return WorkStatement{TakeExpression(reader, "work")};
    if (reader.Has("cut")) {
      const Json& cut = reader.Take("cut");
      if (cut != Json(true)) FailValue(reader.PathOf("cut"), "true", cut);
      return CutStatement{};
    }
    Fail(ErrorCode::kInvalidArgument, reader.path(),
         " is not a statement, expected one of let, require, for, if, transfer, start, wait, "
         "arrive, work, cut");
  }

  TransferStatement ParseTransfer(ObjectReader& reader) {
    const int fifo =
        IndexOf(manifest_.fifos, reader.String("transfer"), reader.PathOf("transfer"), "fifo");
    const int argument = IndexOf(sequence_.arguments, reader.String("argument"),
                                 reader.PathOf("argument"), "argument");
    const bool reads = manifest_.fifos[static_cast<size_t>(fifo)].direction == Direction::kMm2s;
    const Access access = sequence_.arguments[static_cast<size_t>(argument)].access;
    Require(access == Access::kInOut || (access == Access::kIn) == reads, reader.path(), " ",
            reads ? "reads" : "writes", " the argument \"",
            sequence_.arguments[static_cast<size_t>(argument)].name, "\", which is declared \"",
            reads ? "out" : "in", "\"");
    TransferStatement transfer{
        fifo, argument, TakeExpression(reader, "offset"), TakeExpression(reader, "run"), {}};
    const std::string path = reader.PathOf("outer");
    for (const Json& pair : reader.List("outer")) {
      if (!pair.is_array() || pair.size() != 2) FailValue(path, "pairs [count, stride]", pair);
      transfer.outer.emplace_back(ParseExpression(pair[0], path), ParseExpression(pair[1], path));
    }
    return transfer;
  }

  StartStatement ParseStart(ObjectReader& reader) {
    StartStatement start{
        IndexOf(manifest_.workers, reader.String("start"), reader.PathOf("start"), "worker"), {}};
    for (const Json& value : reader.List("values")) {
      start.values.push_back(ParseExpression(value, reader.PathOf("values")));
    }
    const Worker& worker = manifest_.workers[static_cast<size_t>(start.worker)];
    Require(start.values.size() == worker.parameters.size(), reader.PathOf("values"), " has ",
            start.values.size(), " values, expected ", worker.parameters.size(),
            " for the worker \"", worker.name, "\"");
    return start;
  }

  WaitStatement ParseWait(ObjectReader& reader, const char* key, bool everything) {
    WaitStatement wait{{}, everything};
    const std::string path = reader.PathOf(key);
    const Json& names = reader.List(key);
    if (names.empty()) FailValue(path, "a list of at least one fifo", names);
    for (const Json& name : names) {
      wait.fifos.push_back(IndexOf(manifest_.fifos, ReadString(name, path), path, "fifo"));
    }
    return wait;
  }

  std::vector<std::variant<std::string, int>> ParseMessage(const std::string& text,
                                                           const std::string& path) {
    std::vector<std::variant<std::string, int>> parts;
    size_t at = 0;
    while (at < text.size()) {
      const size_t open = text.find('{', at);
      if (open == std::string::npos) break;
      const size_t close = text.find('}', open);
      const std::string name =
          close == std::string::npos ? "" : text.substr(open + 1, close - open - 1);
      const Symbol* symbol = Find(name);
      Require(symbol != nullptr && !name.empty(), path, " has \"{", name,
              "\", expected {name} of a symbol that has a value here");
      parts.emplace_back(text.substr(at, open - at));
      parts.emplace_back(symbol->slot);
      at = close + 1;
    }
    parts.emplace_back(text.substr(at));
    return parts;
  }

  const Manifest& manifest_;
  Sequence& sequence_;
  std::string prefix_;
  std::vector<Symbol> symbols_;
  size_t depth_ = 0;
};

}  // namespace

Sequence ParseSequence(const Json& value, const std::string& name, const std::string& path,
                       const Manifest& manifest) {
  Sequence sequence{};
  sequence.name = name;
  SequenceParser(manifest, sequence).Parse(value, path);
  return sequence;
}

}  // namespace ort_aie::npu
