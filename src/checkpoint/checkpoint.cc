#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/gzip.h"
#include "checkpoint/index.h"
#include "checkpoint/inventory.h"
#include "checkpoint/names.h"
#include "checkpoint/quote_name.h"
#include "checkpoint/safetensors.h"

namespace verbatim::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 16 << 20;

// `status` follows links, so a link to a file counts as one; a directory, a pipe or a device does not.
bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::optional<std::string> read_optional(const fs::path& path) {
  if (!is_file(path)) return std::nullopt;
  return read_text_file(path, kMaxConfigBytes);
}

std::vector<fs::path> safetensors_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors" && is_file(entry.path())) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error))
    fail(ErrorKind::kIo, directory.string(), "not a directory; expected one with config.json and *.safetensors");
  Checkpoint checkpoint;
  checkpoint.path_ = directory;
  checkpoint.has_data_ = true;

  const fs::path index_path = directory / kIndexName;
  if (is_file(index_path)) {
    checkpoint.open_index(index_path);
  } else {
    std::vector<fs::path> files = is_file(directory / "model.safetensors")
                                      ? std::vector<fs::path>{directory / "model.safetensors"}
                                      : safetensors_files(directory);
    if (files.empty())
      fail(ErrorKind::kIo, directory.string(),
           "no checkpoint: none of {}, model.safetensors or *.safetensors is there; expected one of them", kIndexName);
    for (const fs::path& file : files) checkpoint.add_shard(file);
  }
  checkpoint.read_texts(directory, directory / "config.json");
  checkpoint.build_views();
  checkpoint.note_disagreements();
  return checkpoint;
}

void Checkpoint::open_index(const fs::path& index_path) {
  const MappedFile file(index_path);
  if (file.size() > kMaxHeaderBytes)
    fail(ErrorKind::kFormat, index_path.string(), "an index of {} bytes; expected at most {}", file.size(),
         kMaxHeaderBytes);
  const Index index =
      parse_index({reinterpret_cast<const char*>(file.bytes().data()), file.size()}, index_path.string());

  std::vector<uint32_t> order(index.files.size());  // the first entry of each file, for messages
  for (size_t i = index.entries.size(); i-- > 0;) order[index.entries[i].file] = static_cast<uint32_t>(i);
  for (size_t i = 0; i < index.files.size(); ++i) {
    const fs::path path = index_path.parent_path() / index.files[i];
    if (!is_file(path))
      fail(ErrorKind::kIo, index_path.string(),
           "the shard {} named for tensor {} is not there; expected a file; perhaps an incomplete download",
           quote_name(index.files[i]), quote_name(index.entries[order[i]].tensor));
    add_shard(path);
  }

  // Each entry must be held by the shard it names: both lists sorted by name, walked together.
  std::vector<uint32_t> held(raw_.size());
  for (uint32_t i = 0; i < held.size(); ++i) held[i] = i;
  std::sort(held.begin(), held.end(), [&](uint32_t a, uint32_t b) {
    return raw_[a].name != raw_[b].name ? raw_[a].name < raw_[b].name : raw_[a].shard < raw_[b].shard;
  });
  size_t next = 0, missing = 0, unlisted = 0;
  std::string first_missing, first_unlisted;
  auto pass_unlisted = [&](std::string_view until, bool to_end) {
    for (; next < held.size() && (to_end || raw_[held[next]].name < until); ++next)
      if (unlisted++ == 0) first_unlisted = raw_[held[next]].name;
  };
  for (const Index::Entry& entry : index.entries) {
    pass_unlisted(entry.tensor, false);
    bool in_named_shard = false;
    std::string elsewhere;
    for (; next < held.size() && raw_[held[next]].name == entry.tensor; ++next) {
      const uint32_t shard = raw_[held[next]].shard;
      if (shard == entry.file)
        in_named_shard = true;
      else
        elsewhere = index.files[shard];
    }
    if (in_named_shard) continue;
    if (missing++ == 0)
      first_missing = fmt::format("tensor {}: expected in the shard {}, found {}", quote_name(entry.tensor),
                                  quote_name(index.files[entry.file]),
                                  elsewhere.empty() ? "nowhere" : fmt::format("in {}", quote_name(elsewhere)));
  }
  pass_unlisted({}, true);
  if (missing != 0)
    fail(ErrorKind::kFormat, index_path.string(),
         "{} of {} tensors are not in the shard that the index names for them; the first: {}", missing,
         index.entries.size(), first_missing);
  if (unlisted != 0)
    notes_.push_back(fmt::format("{} tensors are in the shards but not in the index (the first: {}); they are used",
                                 unlisted, quote_name(first_unlisted)));
  if (index.total_size && *index.total_size != payload_bytes_)
    notes_.push_back(
        fmt::format("the index declares {} bytes in all, the shards hold {}", *index.total_size, payload_bytes_));
}

Checkpoint Checkpoint::from_inventory(const fs::path& headers, const fs::path& config) {
  Checkpoint checkpoint;
  checkpoint.path_ = headers;
  checkpoint.shards_.push_back({headers, MappedFile()});
  for (InventoryTensor& tensor : read_inventory(headers)) {
    checkpoint.raw_.push_back({std::move(tensor.name), tensor.dtype, tensor.shape, 0, tensor.bytes, 0});
    if (__builtin_add_overflow(checkpoint.payload_bytes_, tensor.bytes, &checkpoint.payload_bytes_))
      fail(ErrorKind::kFormat, headers.string(), "tensor {}: the sizes up to it pass 2^64 bytes",
           quote_name(checkpoint.raw_.back().name));
  }
  checkpoint.read_texts(config.has_parent_path() ? config.parent_path() : fs::path("."), config);
  checkpoint.build_views();
  checkpoint.note_disagreements();
  return checkpoint;
}

void Checkpoint::add_shard(const fs::path& file) {
  const auto shard = static_cast<uint32_t>(shards_.size());
  shards_.push_back({file, MappedFile(file)});
  Header header = parse_header(shards_.back().file.bytes(), file.string());
  for (HeaderTensor& tensor : header.tensors) {
    payload_bytes_ += tensor.end - tensor.begin;
    raw_.push_back(
        {std::move(tensor.name), tensor.dtype, tensor.shape, tensor.begin, tensor.end - tensor.begin, shard});
  }
}

void Checkpoint::read_texts(const fs::path& directory, const fs::path& config) {
  if (!is_file(config)) fail(ErrorKind::kIo, config.string(), "not there; expected the checkpoint's config.json");
  config_text_ = read_text_file(config, kMaxConfigBytes);
  quantisation_ = parse_quantisation(config_text_, read_optional(directory / "hf_quant_config.json"), config.string());
  generation_config_text_ = read_optional(directory / "generation_config.json");
  processor_config_text_ = read_optional(directory / "processor_config.json");
  if (!processor_config_text_) processor_config_text_ = read_optional(directory / "preprocessor_config.json");
}

void Checkpoint::build_views() {
  raw_.shrink_to_fit();  // names are referred to from here on
  tensors_.reserve(raw_.size());
  for (uint32_t i = 0; i < raw_.size(); ++i) {
    const RawTensor& raw = raw_[i];
    std::optional<std::string> mapped = canonical_name(raw.name);
    std::vector<FusedPart> parts = fused_parts(mapped ? *mapped : raw.name, raw.shape, file_of(i).string());
    const size_t element_bytes = dtype_bytes(raw.dtype);
    for (FusedPart& part : parts) {
      const uint64_t bytes = static_cast<uint64_t>(part.shape.elements()) * element_bytes;
      mapped_names_.push_back(std::move(part.name));
      tensors_.push_back({mapped_names_.back(), raw.dtype, part.shape, i, part.offset_elements * element_bytes, bytes});
    }
    if (!parts.empty()) continue;
    std::string_view name = raw.name;
    if (mapped) {
      mapped_names_.push_back(*std::move(mapped));
      name = mapped_names_.back();
    }
    tensors_.push_back({name, raw.dtype, raw.shape, i, 0, raw.bytes});
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorView& a, const TensorView& b) {
    return a.name != b.name ? a.name < b.name : a.raw < b.raw;
  });
  for (size_t i = 1; i < tensors_.size(); ++i) {
    const TensorView &a = tensors_[i - 1], &b = tensors_[i];
    if (a.name != b.name) continue;
    fail(ErrorKind::kFormat, path_.string(), "tensor {}: stored twice, as {} in {} and as {} in {}; expected it once",
         quote_name(a.name), quote_name(raw_name(a.raw)), file_of(a.raw).filename().string(),
         quote_name(raw_name(b.raw)), file_of(b.raw).filename().string());
  }
}

void Checkpoint::note_disagreements() {
  const Quantisation& metadata = quantisation_;
  for (const std::string& note : metadata.notes) notes_.push_back(note);
  if (metadata.kind == QuantisationKind::kNone) return;

  // Names in lists that name nothing here (another namespace), and forms other than the metadata claims.
  size_t strangers = 0, unquantised = 0, quantised = 0;
  std::string first_stranger, first_unquantised, first_quantised;
  for (const std::string& name : metadata.ignore.plain_names())
    if (find(name) == nullptr && with_prefix(name + ".").empty()) {
      if (strangers++ == 0 || name < first_stranger) first_stranger = name;
    }
  for (const TensorView& tensor : tensors_) {
    const size_t dot = tensor.name.rfind('.');
    const std::string_view leaf = tensor.name.substr(dot + 1);
    if (dot == std::string_view::npos || (leaf != "weight" && leaf != "weight_packed") || tensor.shape.size() != 2 ||
        tensor.name.ends_with(".embed_tokens.weight"))  // an embedding is not a Linear
      continue;
    const std::string_view module = tensor.name.substr(0, dot);
    const bool stored_quantised = tensor.dtype == DType::kU8 || tensor.dtype == DType::kF8E4M3;
    if (stored_quantised == metadata.claims(module)) continue;
    size_t& count = stored_quantised ? quantised : unquantised;
    if (count++ == 0) (stored_quantised ? first_quantised : first_unquantised) = module;
  }
  if (strangers != 0)
    notes_.push_back(
        fmt::format("{} of {} names that the metadata leaves unquantised name nothing stored (the first: {})",
                    strangers, metadata.ignore.all().size(), quote_name(first_stranger)));
  if (unquantised != 0)
    notes_.push_back(
        fmt::format("{} matrices are stored unquantised though the metadata does not say so (the first: {})",
                    unquantised, quote_name(first_unquantised)));
  if (quantised != 0)
    notes_.push_back(fmt::format("{} matrices are stored quantised though the metadata says otherwise (the first: {})",
                                 quantised, quote_name(first_quantised)));
}

const TensorView* Checkpoint::find(std::string_view canonical) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), canonical,
                                   [](const TensorView& tensor, std::string_view key) { return tensor.name < key; });
  return it != tensors_.end() && it->name == canonical ? &*it : nullptr;
}

std::span<const TensorView> Checkpoint::with_prefix(std::string_view prefix) const {
  const auto begin = std::lower_bound(tensors_.begin(), tensors_.end(), prefix,
                                      [](const TensorView& tensor, std::string_view key) { return tensor.name < key; });
  const auto end = std::partition_point(begin, tensors_.end(),
                                        [&](const TensorView& tensor) { return tensor.name.starts_with(prefix); });
  return {begin, end};
}

std::span<const std::byte> Checkpoint::data(const TensorView& tensor) const {
  if (!has_data_)
    fail(ErrorKind::kUsage, path_.string(), "tensor {}: an inventory holds no data; expected a checkpoint directory",
         quote_name(tensor.name));
  const RawTensor& raw = raw_[tensor.raw];
  return shards_[raw.shard].file.bytes().subspan(raw.begin + tensor.offset_bytes, tensor.bytes);
}

void Checkpoint::release(const TensorView& tensor, uint64_t first_bytes) const {
  if (has_data_) shards_[raw_[tensor.raw].shard].file.release(file_offset(tensor), first_bytes);
}

}  // namespace verbatim::checkpoint
