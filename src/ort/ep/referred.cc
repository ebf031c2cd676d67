#include "ort/ep/referred.h"

#include <algorithm>
#include <locale>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/platform.h"

namespace ort_aie::ep {
namespace {

constexpr char kAgain[] = "; generate the context model again";

// Differs for tensors of other models, most likely: of the first and the last page.
uint64_t SampleOf(const uint8_t* data, int64_t bytes) {
  constexpr int64_t kPage = 4096;
  uint64_t sum = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum = (sum ^ data[i]) * 0x100000001b3;
  };
  add(0, std::min(kPage, bytes));
  add(std::max<int64_t>(0, bytes - kPage), bytes);
  return sum;
}

// Whether a data file is in the folder of its model or below, as ONNX Runtime demands.
bool IsInside(const std::string& file) {
  const std::filesystem::path path = platform::PathOf(file);
  return !path.empty() && !path.has_root_path() && file.find('\n') == std::string::npos &&
         std::ranges::none_of(path, [](const auto& part) { return part == ".."; });
}

std::vector<std::string> InitializersOf(const ClaimedRegion::Constant& constant) {
  std::vector<std::string> names;
  TextOf(constant, [&](const std::string& name) {
    names.push_back(name);
    return name;
  });
  return names;
}

// The file of tensors, mapped.
struct DataFile {
  std::string path;
  std::shared_ptr<const uint8_t> owner;
  std::span<const uint8_t> bytes;
};

DataFile OpenData(const std::string& name, const std::string& context,
                  const std::vector<std::string>& folders) {
  Require(IsInside(name), context, " names the data file '", name,
          "', which is not in the folder of a model", kAgain);
  std::string tried;
  for (const std::string& folder : folders) {
    const std::string path = folder + name;
    tried += (tried.empty() ? "" : " or ") + path;
    if (!platform::Exists(path)) continue;
    const platform::File file = platform::File::Open(path);
    const int64_t bytes = file.is_open() ? file.Bytes() : -1;
    auto mapped = bytes > 0 ? file.Map(0, bytes) : nullptr;
    Require(mapped != nullptr, path, ", the weights of the context model, cannot be mapped");
    const auto* begin = mapped.get();
    return {path, std::move(mapped), {begin, static_cast<size_t>(bytes)}};
  }
  Fail(ErrorCode::kInvalidArgument, name, " of the model that ", context,
       " was made from is not at ", tried,
       "; keep it beside the context model, or give its folder in "
       "session.model_external_initializers_file_folder_path, and the path of the context model in "
       "ep.context_file_path");
}

}  // namespace

bool Referrer::IsInData(const std::string& name) {
  const auto [found, is_new] = data_.try_emplace(name);
  if (is_new) {
    found->second = FindData(api_, folder_, initializers_.at(name));
    if (!IsInside(found->second.file)) found->second = {};
  }
  return found->second.bytes != nullptr;
}

std::string Referrer::TensorOf(const std::string& name, ContextWriter& file) {
  const auto [found, is_new] = tensors_.try_emplace(name, std::to_string(tensors_.size()));
  if (!is_new) return found->second;
  const Tensor& tensor = initializers_.at(name).tensor;
  int index = -1;
  int64_t offset = 0;
  if (IsInData(name)) {
    const DataRange& data = data_.at(name);
    const auto [its, is_new_file] = files_.try_emplace(data.file, static_cast<int>(files_.size()));
    if (is_new_file) text_ += Concat("file ", data.file, '\n');
    index = its->second;
    offset = data.offset;
  } else {
    offset = file.Add(tensor.data, tensor.bytes).offset;
  }
  text_ += Concat("tensor ", index, ' ', offset, ' ', tensor.bytes, ' ', NumberOf(tensor.type), ' ',
                  SampleOf(tensor.as<uint8_t>(), tensor.bytes), '\n');
  return found->second;
}

std::optional<Recipe::FileRange> Referrer::Refer(const Constants::Source& source,
                                                 ContextWriter& file) {
  const auto names = InitializersOf(*source.constant);
  if (std::ranges::none_of(names, [&](const auto& name) { return IsInData(name); })) return {};
  const std::string text =
      TextOf(*source.constant, [&](const std::string& name) { return TensorOf(name, file); });
  text_ += Concat("constant ", source.tensor.bytes, ' ', text, '\n');
  return Recipe::FileRange{-1 - constants_++, source.tensor.bytes};
}

std::vector<Tensor> MakeReferred(const std::string& text, const std::string& path,
                                 std::span<const uint8_t> own,
                                 const std::vector<std::string>& folders,
                                 std::vector<std::shared_ptr<const void>>& memory) {
  std::vector<DataFile> files;
  Initializers initializers;
  ClaimedRegion made;
  std::istringstream words(text);
  words.imbue(std::locale::classic());
  bool good = true;
  for (std::string key; good && words >> key;) {
    if (key == "file") {
      std::string name;
      good = words.get() == ' ' && std::getline(words, name);
      if (good) files.push_back(OpenData(name, path, folders));
    } else if (key == "tensor") {
      int64_t file = 0, offset = 0, bytes = 0, type = 0;
      uint64_t sample = 0;
      good = words >> file >> offset >> bytes >> type >> sample && file >= -1 &&
             std::cmp_less(file, files.size());
      if (!good) break;
      const DataFile from =
          file < 0 ? DataFile{path, nullptr, own} : files[static_cast<size_t>(file)];
      const DataType known = TypeOfNumber(type);
      const bool is_there = offset >= 0 && offset % static_cast<int64_t>(SizeOf(known)) == 0 &&
                            bytes > 0 && Size(offset) + bytes <= from.bytes.size();
      Require(is_there && SampleOf(from.bytes.data() + offset, bytes) == sample, from.path,
              " has other weights than the model that ", path, " was made from", kAgain);
      initializers[std::to_string(initializers.size())] = {
          {known, {}, from.bytes.data() + offset, true, bytes}, nullptr, from.owner};
    } else {
      int64_t bytes = 0;
      ClaimedRegion::Constant& constant = made.constants.emplace_back();
      good = key == "constant" && words >> bytes && bytes >= 0 && ReadConstant(words, constant);
      made.recipe.constants.push_back({DataType::kUint8, {}, {0, bytes}});
    }
  }
  Require(good, path, " does not say how its weights are made", kAgain);
  std::vector<Tensor> list;
  try {
    const Constants constants({&made}, initializers);
    const std::vector<Tensor> tensors = constants.Load(nullptr, "", memory);
    for (const auto& constant : made.constants) {
      list.push_back(tensors[constants.IndexOf(constant)]);
    }
  } catch (const Error& error) {
    throw Error(error.code(), Concat(path, ": ", error.what(), kAgain));
  }
  return list;
}

}  // namespace ort_aie::ep
