// A checkpoint directory as named, typed tensors. Everything is mapped; nothing is copied or converted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/read_ahead.h"
#include "checkpoint/dtype.h"
#include "checkpoint/quantisation.h"

namespace verbatim::checkpoint {

// A canonical tensor: a whole raw (stored) tensor, or a part of one that is stored fused.
struct TensorView {
  std::string_view name;  // canonical
  DType dtype = DType::kU8;
  Shape shape;
  uint32_t raw = 0;           // which raw tensor
  uint64_t offset_bytes = 0;  // inside the raw tensor
  uint64_t bytes = 0;
};

class Checkpoint {
 public:
  // Opens what model.safetensors.index.json names, else model.safetensors, else every *.safetensors in the directory,
  // and reads config.json, hf_quant_config.json and the optional texts. Throws Error(kIo), Error(kFormat) or
  // Error(kUnsupported).
  static Checkpoint open(const std::filesystem::path& directory);

  // Names, dtypes and shapes alone: {name: [dtype, shape]} as .json or .json.gz. hf_quant_config.json and the optional
  // texts are looked for beside `config`.
  static Checkpoint from_inventory(const std::filesystem::path& headers, const std::filesystem::path& config);

  // Sorted by name; names are unique.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // nullptr if absent.
  const TensorView* find(std::string_view canonical) const;
  // The tensors whose name begins with `prefix`.
  std::span<const TensorView> with_prefix(std::string_view prefix) const;

  // The stored bytes, at any alignment; valid as long as the checkpoint. Throws Error(kUsage) for an inventory.
  std::span<const std::byte> data(const TensorView& tensor) const;
  bool has_data() const { return has_data_; }
  // Where those bytes begin in file_of(tensor.raw), for readers that want errors instead of faults.
  uint64_t file_offset(const TensorView& tensor) const { return raw_[tensor.raw].begin + tensor.offset_bytes; }
  // The same, for a thread that reads ahead; valid as long as the checkpoint, which must have data.
  ReadAhead::Range file_range(const TensorView& tensor) const {
    return {&shards_[raw_[tensor.raw].shard].file, file_offset(tensor), tensor.bytes};
  }
  // Lets the system drop the tensor's pages from memory; they are read again when touched.
  void release(const TensorView& tensor) const { release(tensor, tensor.bytes); }
  void release(const TensorView& tensor, uint64_t first_bytes) const;  // of its first bytes alone

  // As stored, before names are mapped and fused tensors are cut.
  size_t raw_count() const { return raw_.size(); }
  uint64_t payload_bytes() const { return payload_bytes_; }
  const std::string& raw_name(uint32_t raw) const { return raw_[raw].name; }
  // The file that holds a raw tensor (the inventory itself when there is no data).
  const std::filesystem::path& file_of(uint32_t raw) const { return shards_[raw_[raw].shard].path; }
  size_t shard_count() const { return shards_.size(); }

  // The directory, or the inventory's path.
  const std::filesystem::path& path() const { return path_; }
  const std::string& config_text() const { return config_text_; }
  const std::optional<std::string>& generation_config_text() const { return generation_config_text_; }
  // processor_config.json, else preprocessor_config.json.
  const std::optional<std::string>& processor_config_text() const { return processor_config_text_; }
  const Quantisation& quantisation() const { return quantisation_; }
  // Harmless oddities met while opening: metadata that disagrees with what is stored, an index that is not exact.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Shard {
    std::filesystem::path path;
    MappedFile file;
  };
  struct RawTensor {
    std::string name;
    DType dtype;
    Shape shape;
    uint64_t begin, bytes;
    uint32_t shard;
  };

  Checkpoint() = default;
  void open_index(const std::filesystem::path& index);
  void add_shard(const std::filesystem::path& file);
  void read_texts(const std::filesystem::path& directory, const std::filesystem::path& config);
  // From raw_: names, parts, order, clashes. Nothing may be added to raw_ afterwards.
  void build_views();
  void note_disagreements();

  std::filesystem::path path_;
  std::vector<Shard> shards_;
  std::vector<RawTensor> raw_;
  std::deque<std::string> mapped_names_;  // canonical names that differ from the raw ones; addresses are stable
  std::vector<TensorView> tensors_;
  uint64_t payload_bytes_ = 0;
  bool has_data_ = false;
  std::string config_text_;
  std::optional<std::string> generation_config_text_, processor_config_text_;
  Quantisation quantisation_;
  std::vector<std::string> notes_;
};

}  // namespace verbatim::checkpoint
