// Tensors on their way from source to shard: read, quantised where the plan says so, written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quantize/conversion_plan.h"
#include "quantize/nvfp4_bf16.h"
#include "quantize/source_reader.h"

namespace verbatim {
class ThreadPool;
}

namespace verbatim::quantize {

// Memory that grows when asked for more and is not cleared.
class Bytes {
 public:
  void reserve(size_t bytes);
  std::byte* data() const { return data_.get(); }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t capacity_ = 0;
};

// A whole matrix to be quantised, or a run of bytes of a tensor to be copied.
struct BatchPiece {
  const ConversionItem* item = nullptr;
  uint64_t offset = 0, bytes = 0;       // of the source tensor
  size_t source_at = 0, result_at = 0;  // in the batch
  size_t result_bytes = 0;              // quantised: all parts of the matrix, in the order of its specs
  uint16_t largest = 0;                 // BF16, quantised: the largest magnitude (Bf16Kernels::largest)
  float input_scale = 0;                // quantised and stored beside the weights, else 0
  ErrorSums errors;                     // quantised
};

struct MatrixBatch {
  size_t shard = 0;
  bool opens_shard = false, closes_shard = false;
  std::vector<BatchPiece> pieces;
  Bytes source, result;
  std::map<std::string, FileRecord> finished_sources;  // known when the batch had been read

  // The bytes that a piece becomes.
  std::span<const std::byte> output(const BatchPiece& piece) const;
};

// Fills a piece's bytes from the source. Weights to be quantised are looked at for their largest magnitude while they
// are in the cache, so that quantising reads them from memory once. Throws what SourceReader::read throws.
void read_piece(const MatrixBatch& batch, BatchPiece& piece, SourceReader& reader);
// What read_piece notes of the bytes, for batches that were filled otherwise.
void note_largest(const MatrixBatch& batch, BatchPiece& piece);

// Quantises every piece that is to be, on the pool. The result does not depend on it. Throws Error(kFormat), naming the
// tensor, for weights that are not finite.
void quantise_batch(MatrixBatch& batch, ThreadPool& pool);

}  // namespace verbatim::quantize
