#include "quantize/converter.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "checkpoint/index.h"
#include "quantize/journal.h"
#include "quantize/manifest.h"
#include "quantize/matrix_batch.h"
#include "quantize/metadata.h"

namespace verbatim::quantize {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxOtherFileBytes = 512 << 20;
constexpr uint64_t kSpareBytes = 16 << 20;       // left free beyond what is counted
constexpr uint64_t kHeaderBytesPerTensor = 200;  // a name, a dtype, a shape and two offsets in JSON; twice: index
constexpr const char* kCalibrationName = "calibration.safetensors";

FileRecord record_of(const std::string& contents) {
  Sha256 digest;
  digest.update(std::as_bytes(std::span(contents)));
  return {contents.size(), to_hex(digest.finish())};
}

// Small files that a checkpoint of the same model needs too: tokenizer, template, generation and processor configs,
// licence. Cards describe the source and stay behind.
bool is_carried(const fs::path& file) {
  const std::string name = file.filename().string(), extension = file.extension().string();
  if (name == "config.json" || name == "hf_quant_config.json" || name == checkpoint::kIndexName ||
      name == kManifestName || name == kJournalName || name.starts_with("."))
    return false;
  return extension == ".json" || extension == ".jinja" || extension == ".txt" || extension == ".model" ||
         name == "LICENSE" || name == "NOTICE";
}

std::string conversion_identity(const checkpoint::Checkpoint& source, const Recipe& recipe, const ConversionPlan& plan,
                                const ActivationScales& scales, const Calibration* calibration,
                                const std::string& version) {
  Sha256 digest;
  auto feed = [&](std::string text) {
    text += '\n';
    digest.update(std::as_bytes(std::span(text)));
  };
  feed(version);
  feed(recipe.text);
  feed(model_identity(source));
  for (const ConversionItem& item : plan.items)
    feed(fmt::format("{} {} {}", source.file_of(item.source->raw).filename().string(), source.file_offset(*item.source),
                     item.source->name));
  for (const auto& [key, site] : scales) {
    feed(site_text(key));
    digest.update(std::as_bytes(std::span(site.values)));
  }
  if (calibration != nullptr) feed(fmt::format("{}", fmt::join(calibration->runs, " ")));
  return to_hex(digest.finish());
}

void require_space(const fs::path& directory, uint64_t needed) {
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0)
    fail(ErrorKind::kIo, directory.string(), "cannot ask for its free space: {}", std::strerror(errno));
  const uint64_t free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (free_bytes < needed)
    fail(ErrorKind::kCapacity, directory.string(),
         "{} bytes are free; expected at least {} for what is still to be written; make room or convert elsewhere",
         free_bytes, needed);
}

// The stages: batches are cut, read, quantised and written in one order; three are on their way at a time.
class Pipeline {
 public:
  Pipeline(const checkpoint::Checkpoint& source, const ConversionPlan& plan, const ActivationScales& scales,
           const ConvertOptions& options, Journal& journal, ThreadPool& pool)
      : plan_(plan),
        scales_(scales),
        options_(options),
        journal_(journal),
        pool_(pool),
        reader_(source),
        progress_("converting", plan.source_bytes >> 20, "MiB") {}

  // All shards from `first_shard` on.
  void run(size_t first_shard) {
    shard_ = first_shard;
    item_ = first_shard < plan_.shards.size() ? plan_.shards[first_shard].begin : plan_.items.size();
    offset_ = 0;
    for (size_t i = 0; i < item_; ++i) read_bytes_ += plan_.items[i].source->bytes;
    std::future<bool> read = std::async(std::launch::async, [this] { return cut_and_read(batches_[0]); });
    std::future<void> written;
    for (size_t turn = 0; read.get(); ++turn) {
      MatrixBatch& batch = batches_[turn % 3];
      MatrixBatch& next = batches_[(turn + 1) % 3];
      read = std::async(std::launch::async, [this, &next] { return cut_and_read(next); });
      quantise_batch(batch, pool_);
      if (written.valid()) written.get();
      written = std::async(std::launch::async, [this, &batch] { write(batch); });
    }
    if (written.valid()) written.get();
  }

 private:
  // The next batch, filled from the source. False after the last.
  bool cut_and_read(MatrixBatch& batch) {
    if (item_ == plan_.items.size()) return false;
    const ConversionShard& shard = plan_.shards[shard_];
    batch.shard = shard_;
    batch.opens_shard = item_ == shard.begin && offset_ == 0;
    batch.pieces.clear();
    uint64_t source_bytes = 0, result_bytes = 0;
    while (item_ < shard.end) {
      const ConversionItem& item = plan_.items[item_];
      const uint64_t left = item.source->bytes - offset_;
      const uint64_t room = source_bytes < options_.batch_bytes ? options_.batch_bytes - source_bytes : 0;
      if (item.quantised ? left > room && !batch.pieces.empty() : room == 0) break;
      BatchPiece piece;
      piece.item = &item;
      piece.offset = offset_;
      piece.bytes = item.quantised ? left : std::min(left, room);
      piece.source_at = source_bytes;
      piece.result_at = result_bytes;
      if (item.quantised) {
        piece.result_bytes = item.bytes;
        if (item.specs.size() == 4) piece.input_scale = input_scale_of(scales_, item);
        result_bytes += (item.bytes + 63) / 64 * 64;
      }
      source_bytes += (piece.bytes + 63) / 64 * 64;
      batch.pieces.push_back(piece);
      offset_ += piece.bytes;
      if (offset_ == item.source->bytes) ++item_, offset_ = 0;
    }
    batch.closes_shard = item_ == shard.end;
    if (batch.closes_shard) ++shard_;
    batch.source.reserve(source_bytes);
    batch.result.reserve(result_bytes);
    for (BatchPiece& piece : batch.pieces) read_piece(batch, piece, reader_);
    if (item_ == plan_.items.size()) reader_.finish_file();
    batch.finished_sources = reader_.finished();
    return true;
  }

  void write(const MatrixBatch& batch) {
    const ConversionShard& shard = plan_.shards[batch.shard];
    if (batch.opens_shard) {
      std::vector<checkpoint::TensorSpec> specs;
      for (size_t i = shard.begin; i < shard.end; ++i)
        specs.insert(specs.end(), plan_.items[i].specs.begin(), plan_.items[i].specs.end());
      digest_ = std::make_unique<Sha256>();
      record_ = {};
      record_.file = shard.file;
      writer_ = std::make_unique<checkpoint::SafetensorsWriter>(options_.out / shard.file, std::move(specs),
                                                                std::map<std::string, std::string>{{"format", "pt"}},
                                                                checkpoint::WriterOptions{.digest = digest_.get()});
    }
    for (const BatchPiece& piece : batch.pieces) {
      writer_->append(batch.output(piece));
      if (piece.item->quantised)
        record_.errors[model::group_name(piece.item->group)].add(piece.item->module, piece.errors);
      read_bytes_ += piece.bytes;
      progress_.advance(read_bytes_ >> 20);
    }
    if (!batch.closes_shard) return;
    writer_->finish();
    writer_.reset();
    std::error_code error;
    record_.written = {fs::file_size(options_.out / shard.file, error), to_hex(digest_->finish())};
    for (const auto& [name, file] : batch.finished_sources)
      if (noted_.emplace(name, file).second) record_.sources.emplace(name, file);
    journal_.append(record_);
  }

  const ConversionPlan& plan_;
  const ActivationScales& scales_;
  const ConvertOptions& options_;
  Journal& journal_;
  ThreadPool& pool_;
  // Of the reading stage.
  SourceReader reader_;
  size_t shard_ = 0, item_ = 0;
  uint64_t offset_ = 0;
  // Of the writing stage.
  std::unique_ptr<Sha256> digest_;
  std::unique_ptr<checkpoint::SafetensorsWriter> writer_;
  ShardRecord record_;
  std::map<std::string, FileRecord> noted_;
  uint64_t read_bytes_ = 0;
  Progress progress_;

  std::array<MatrixBatch, 3> batches_;
};

// Files beside the shards, each under its final name when it is whole.
class OtherFiles {
 public:
  explicit OtherFiles(const fs::path& out) : out_(out) {}

  void write(const std::string& name, const std::string& contents) {
    write_file_atomically(out_ / name, contents);
    records_[name] = record_of(contents);
  }
  void note(const std::string& name) { records_[name] = hash_file(out_ / name); }
  const std::map<std::string, FileRecord>& records() const { return records_; }

 private:
  fs::path out_;
  std::map<std::string, FileRecord> records_;
};

void write_scales(const ConversionPlan& plan, const ActivationScales& scales, const fs::path& file) {
  std::vector<checkpoint::TensorSpec> specs;
  std::vector<float> values;
  for (const size_t i : plan.scale_items) {
    specs.push_back({plan.items[i].module + ".input_scale", checkpoint::DType::kF32, {}});
    values.push_back(input_scale_of(scales, plan.items[i]));
  }
  checkpoint::SafetensorsWriter writer(file, std::move(specs), {{"format", "pt"}});
  writer.append(std::as_bytes(std::span(values)));
  writer.finish();
}

void write_weight_map(const ConversionPlan& plan, const Recipe& recipe, const fs::path& out) {
  std::map<std::string, std::string> weight_map;
  for (const ConversionShard& shard : plan.shards)
    for (size_t i = shard.begin; i < shard.end; ++i)
      for (const checkpoint::TensorSpec& spec : plan.items[i].specs) weight_map[spec.name] = shard.file;
  for (const size_t i : plan.scale_items) weight_map[plan.items[i].module + ".input_scale"] = recipe.scales_file;
  checkpoint::write_index(out, weight_map, plan.payload_bytes);
}

bool is_inside(const fs::path& inner, const fs::path& outer) {
  const auto [at, end] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return at == outer.end() || (std::next(at) == outer.end() && at->empty());
}

// What a run that was killed left under temporary names.
void remove_partial_files(const fs::path& out) {
  for (const fs::directory_entry& entry : fs::directory_iterator(out))
    if (entry.path().extension() == ".partial") fs::remove(entry.path());
}

}  // namespace

bool prepare_output(const checkpoint::Checkpoint& source, const fs::path& out, bool resume) {
  const fs::path from = fs::weakly_canonical(source.path()), to = fs::weakly_canonical(out);
  if (is_inside(to, from) || is_inside(from, to))
    fail(ErrorKind::kUsage, out.string(),
         "is {} or holds it or lies in it; expected another directory: the source is never "
         "written to",
         source.path().string());
  std::error_code error;
  fs::create_directories(out, error);
  if (!fs::is_directory(out)) fail(ErrorKind::kIo, out.string(), "cannot create the directory: {}", error.message());
  if (!resume && !fs::is_empty(out))
    fail(ErrorKind::kUsage, out.string(), "is not empty; expected a new directory, or --resume to go on in it");
  return !fs::exists(out / kManifestName) || fs::exists(out / kJournalName);
}

void convert(const checkpoint::Checkpoint& source, const model::Config& config, const Recipe& recipe,
             const Calibration* calibration, const ConvertOptions& options, ThreadPool& pool) {
  const ActivationScales scales =
      calibration != nullptr ? choose_all_scales(recipe, config, *calibration) : ActivationScales{};
  const ConversionPlan plan = plan_conversion(source, config, recipe, !scales.empty());
  const std::string identity = conversion_identity(source, recipe, plan, scales, calibration, options.tool_version);

  Journal journal(options.out, identity, options.resume);
  remove_partial_files(options.out);
  size_t done = journal.done().size();
  for (size_t i = 0; i < done; ++i)
    if (i >= plan.shards.size() || journal.done()[i].file != plan.shards[i].file)
      fail(ErrorKind::kFormat, (options.out / kJournalName).string(), "line {} is not of shard {}", i + 2, i + 1);
  uint64_t needed = kSpareBytes + 2 * kHeaderBytesPerTensor * plan.tensors;
  for (size_t i = done; i < plan.shards.size(); ++i) needed += plan.shards[i].bytes;
  require_space(options.out, needed);

  Pipeline(source, plan, scales, options, journal, pool).run(done);

  OtherFiles others(options.out);
  if (!plan.scale_items.empty()) {
    write_scales(plan, scales, options.out / recipe.scales_file);
    others.note(recipe.scales_file);
  }
  if (calibration != nullptr) {
    save_calibration(*calibration, options.out / kCalibrationName);
    others.note(kCalibrationName);
  }
  std::vector<fs::path> carried;
  for (const fs::directory_entry& entry : fs::directory_iterator(source.path()))
    if (entry.is_regular_file() && is_carried(entry.path())) carried.push_back(entry.path());
  std::sort(carried.begin(), carried.end());
  for (const fs::path& file : carried) others.write(file.filename().string(), read_text_file(file, kMaxOtherFileBytes));
  write_weight_map(plan, recipe, options.out);
  others.note(checkpoint::kIndexName);
  const MetadataTexts texts = make_metadata(recipe, plan.with_activations, config, source.config_text(),
                                            (source.path() / "config.json").string());
  others.write("hf_quant_config.json", texts.hf_quant_config);
  others.write("config.json", texts.config);
  write_file_atomically(options.out / kManifestName,
                        make_manifest({.tool_version = options.tool_version,
                                       .identity = identity,
                                       .recipe = recipe,
                                       .plan = plan,
                                       .scales = scales,
                                       .calibration = plan.with_activations ? calibration : nullptr,
                                       .shards = journal.done(),
                                       .other_files = others.records(),
                                       .source_config = record_of(source.config_text())}));
  journal.remove();
}

}  // namespace verbatim::quantize
