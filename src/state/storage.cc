#include "state/storage.h"

#include "base/error.h"

namespace verbatim::state {

namespace {

constexpr int64_t kFloat = sizeof(float);

// Hands out consecutive arrays of one block.
class Cutter {
 public:
  explicit Cutter(const ops::Buffer& block) : next_(reinterpret_cast<std::byte*>(block.floats())) {}
  float* take(int64_t floats) { return static_cast<float*>(take(floats, kFloat)); }
  void* take(int64_t elements, int64_t element_bytes) {
    std::byte* begin = next_;
    next_ += elements * element_bytes;
    return begin;
  }

 private:
  std::byte* next_;
};

size_t checked(int64_t count, int64_t bytes, const char* what) {
  if (count < 1) fail(ErrorKind::kUsage, "storage", "{} {}; expected at least one", count, what);
  if (bytes > 0 && count > INT64_MAX / bytes)
    fail(ErrorKind::kCapacity, "storage", "{} {} of {} bytes pass what can be addressed", count, what, bytes);
  return static_cast<size_t>(count * bytes);
}

}  // namespace

Storage::Storage(ops::Ops& ops, const model::Config& c, int64_t slots, int64_t pages)
    : slots_(slots),
      pages_(pages),
      slots_block_(ops,
                   checked(slots, model::state_sizes(c, ops.cache_element_bytes()).sequence_bytes, "sequence slots")),
      pages_block_(ops, checked(pages, model::state_sizes(c, ops.cache_element_bytes()).page_bytes, "pages")) {
  Cutter slot_floats(slots_block_), page_elements(pages_block_);
  const int64_t element = ops.cache_element_bytes();
  const int64_t width = c.linear_width();
  for (int64_t layer = 0; layer < c.count(model::MixerKind::kLinear); ++layer) {
    ops::KdaState kda;
    kda.state = slot_floats.take(slots * c.linear_heads * c.linear_head_width * c.linear_head_width);
    kda.conv = slot_floats.take(slots * ops::kConvRing * 3 * width);
    kda.key = slot_floats.take(slots * ops::kKdaRing * width);
    kda.value = slot_floats.take(slots * ops::kKdaRing * width);
    kda.decay = slot_floats.take(slots * ops::kKdaRing * width);
    state_.linear.push_back(kda);
  }
  const ops::IndexShape index = model::index_shape(c);
  for (int64_t layer = 0; layer < c.count(model::MixerKind::kSparse) + c.next_n_layers; ++layer) {
    ops::LatentCache cache;
    cache.latents = page_elements.take(pages * ops::kPageTokens * c.latent, element);
    cache.pools = page_elements.take(pages * (ops::kPageTokens / index.pool) * index.width, element);
    cache.tail_key = slot_floats.take(slots * index.tail_ring() * index.width);
    cache.tail_gate = slot_floats.take(slots * index.tail_ring() * index.width);
    state_.sparse.push_back(cache);
  }
}

ops::Span Sequence::next(int64_t first_row, int64_t rows, int64_t certain) const {
  if (pages_for(length_ + rows) > static_cast<int64_t>(pages_.size()))
    fail(ErrorKind::kCapacity, "sequence", "{} tokens after {} need {} pages; it has {}", rows, length_,
         pages_for(length_ + rows), pages_.size());
  return {first_row, rows, length_, certain, state_position_, slot_, pages_.data()};
}

ops::Span Sequence::advance_state(int64_t position) {
  if (position % ops::kChunkRows != 0 || position > length_ || position < state_position_)
    fail(ErrorKind::kUsage, "sequence", "S to {}; it stands at {} of {} tokens", position, state_position_, length_);
  const ops::Span span = {0, 0, position, 1, state_position_, slot_, pages_.data()};
  state_position_ = position;
  return span;
}

void Sequence::accept(const ops::Span& span, int64_t rows) {
  if (span.position != length_ || rows < span.certain || rows > span.rows)
    fail(ErrorKind::kUsage, "sequence", "accepting {} of {} rows ({} certain) at {}; the sequence is at {}", rows,
         span.rows, span.certain, span.position, length_);
  length_ += rows;
  state_position_ = ops::state_position_after(span);
}

}  // namespace verbatim::state
