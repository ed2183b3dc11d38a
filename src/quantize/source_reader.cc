#include "quantize/source_reader.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace verbatim::quantize {

void SourceReader::open(const std::filesystem::path& file) {
  file_.reset();
  file_.emplace(file);
  digest_.emplace();
}

void SourceReader::read(const checkpoint::TensorView& tensor, uint64_t offset, std::span<std::byte> out) {
  const std::filesystem::path& file = source_.file_of(tensor.raw);
  if (!file_ || file != file_->path()) {
    if (file_) finish_file();
    open(file);
  }
  const uint64_t begin = source_.file_offset(tensor) + offset;
  if (begin < file_->position())
    fail(ErrorKind::kUsage, file.string(), "byte {} is behind byte {}; expected reads in order", begin,
         file_->position());
  skip_to(begin);
  read_on(out);
}

void SourceReader::read_on(std::span<std::byte> out) {
  while (!out.empty()) {
    const size_t n = file_->read(out);
    if (n == 0)
      fail(ErrorKind::kIo, file_->path().string(), "ends at byte {}; expected {} bytes: it changed while it was read",
           file_->position(), file_->size());
    digest_->update(out.first(n));
    file_->drop_behind();
    out = out.subspan(n);
  }
  note_end();
}

void SourceReader::skip_to(uint64_t position) {
  std::vector<std::byte> piece;
  while (file_->position() < position) {
    piece.resize(static_cast<size_t>(std::min<uint64_t>(position - file_->position(), FileReader::kPieceBytes)));
    read_on(piece);
  }
}

void SourceReader::finish_file() {
  if (file_) skip_to(file_->size());
}

void SourceReader::note_end() {
  if (file_->position() != file_->size() || !digest_) return;
  finished_[file_->path().filename().string()] = {file_->size(), to_hex(digest_->finish())};
  digest_.reset();
}

FileRecord hash_file(const std::filesystem::path& path) {
  FileReader file(path);
  std::vector<std::byte> piece(FileReader::kPieceBytes);
  Sha256 digest;
  while (const size_t n = file.read(piece)) digest.update(std::span(piece).first(n));
  return {file.position(), to_hex(digest.finish())};
}

}  // namespace verbatim::quantize
