// Random problems of sparse attention, a runner that feeds them in steps, and MODEL.md section 4 in float64 with bounds
// of the float32 error.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "tests/ops/step_harness.h"

namespace verbatim::ops {

struct SparseProblem {
  IndexShape shape;
  int64_t rows = 0, heads = 0, latent_width = 0;
  Floats ape;
  Floats latents, keys, gates, index_q, head_weights, q;  // rows + kJunkRows rows

  float scale() const { return 0.125f; }
};

inline SparseProblem make_sparse_problem(const IndexShape& shape, int64_t heads, int64_t latent_width, int64_t rows,
                                         uint64_t seed) {
  SparseProblem p;
  p.shape = shape;
  p.rows = rows;
  p.heads = heads;
  p.latent_width = latent_width;
  const int64_t all = rows + kJunkRows;
  p.ape = random_floats(shape.pool * shape.width, seed + 1);
  p.latents = random_floats(all * latent_width, seed + 2);
  p.keys = random_floats(all * shape.width, seed + 3);
  p.gates = random_floats(all * shape.width, seed + 4, 2.0f);
  p.index_q = random_floats(all * shape.heads * shape.width, seed + 5);
  p.head_weights = random_floats(all * shape.heads, seed + 6);
  p.q = random_floats(all * heads * latent_width, seed + 7, 2.0f);
  return p;
}

// What a step returns per row.
struct SparseRows {
  Floats out;  // [rows, heads, latent_width]
  std::vector<std::vector<int32_t>> pools;

  void append(const SparseRows& other, int64_t begin, int64_t end, int64_t row_floats) {
    out.insert(out.end(), other.out.begin() + begin * row_floats, other.out.begin() + end * row_floats);
    pools.insert(pools.end(), other.pools.begin() + begin, other.pools.begin() + end);
  }
};

inline std::string first_difference(const SparseRows& a, const SparseRows& b) {
  for (size_t i = 0; i < std::min(a.pools.size(), b.pools.size()); ++i)
    if (a.pools[i] != b.pools[i]) return "pools of row " + std::to_string(i);
  return first_difference(a.out, b.out);
}

class SparseRunner {
 public:
  // Slot i uses the pages pages[i][0], pages[i][1], ...; ids count from first_page, and the caches hold only those.
  SparseRunner(Ops& ops, const SparseProblem& problem, std::vector<std::vector<int32_t>> pages, int64_t first_page = 0)
      : ops_(ops), p_(problem), pages_(std::move(pages)), first_page_(first_page), ape_(ops, problem.ape) {
    int64_t count = 0;
    for (const auto& list : pages_)
      for (const int32_t page : list) count = std::max(count, page + 1 - first_page);
    const auto slots = static_cast<int64_t>(pages_.size());
    const int64_t ring = slots * p_.shape.tail_ring() * p_.shape.width;
    // Whatever pages and slots held before must not matter; elements of two bytes take half of these floats.
    latents_ = std::make_unique<Device>(ops, random_floats(count * kPageTokens * p_.latent_width, 90));
    pools_ = std::make_unique<Device>(ops, random_floats(count * kPageTokens / p_.shape.pool * p_.shape.width, 91));
    tail_key_ = std::make_unique<Device>(ops, random_floats(ring, 92));
    tail_gate_ = std::make_unique<Device>(ops, random_floats(ring, 93));
  }
  SparseRunner(Ops& ops, const SparseProblem& problem)
      : SparseRunner(ops, problem, {identity_pages(problem.rows + kWindowRows)}) {}

  static std::vector<int32_t> identity_pages(int64_t tokens) {
    std::vector<int32_t> pages(static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens));
    std::iota(pages.begin(), pages.end(), 0);
    return pages;
  }

  SparseRows step(const std::vector<Feed>& feeds) {
    std::vector<Span> spans;
    std::vector<int64_t> source;
    for (const Feed& feed : feeds) {
      Span span;
      span.first_row = static_cast<int64_t>(source.size());
      span.rows = static_cast<int64_t>(feed.source.size());
      span.position = feed.position;
      span.certain = feed.certain;
      span.sequence = feed.slot;
      span.pages = pages_[static_cast<size_t>(feed.slot)].data();
      spans.push_back(span);
      source.insert(source.end(), feed.source.begin(), feed.source.end());
    }
    const auto rows = static_cast<int64_t>(source.size());
    const IndexShape& shape = p_.shape;
    const Device latents(ops_, gather(p_.latents, p_.latent_width, source)),
        keys(ops_, gather(p_.keys, shape.width, source)), gates(ops_, gather(p_.gates, shape.width, source)),
        index_q(ops_, gather(p_.index_q, shape.heads * shape.width, source)),
        head_weights(ops_, gather(p_.head_weights, shape.heads, source)),
        q(ops_, gather(p_.q, p_.heads * p_.latent_width, source)),
        // Selections begin as junk: what the operator does not write must not be read.
        chosen(ops_, random_floats(rows * shape.budget_pools(), 94)), counts(ops_, random_floats(rows, 95)),
        out(ops_, random_floats(rows * p_.heads * p_.latent_width, 96));
    const auto back = [&](const Device& cache, int64_t page_elements) {
      return reinterpret_cast<void*>(reinterpret_cast<intptr_t>(cache.floats()) -
                                     first_page_ * page_elements * ops_.cache_element_bytes());
    };
    const LatentCache cache{back(*latents_, kPageTokens * p_.latent_width),
                            back(*pools_, kPageTokens / shape.pool * shape.width), tail_key_->floats(),
                            tail_gate_->floats()};
    const Selection selection{reinterpret_cast<int32_t*>(chosen.floats()), reinterpret_cast<int32_t*>(counts.floats())};
    ops_.append_latents(shape, p_.latent_width, latents.floats(), keys.floats(), gates.floats(), ape_.floats(), spans,
                        cache);
    ops_.select_pools(shape, index_q.floats(), head_weights.floats(), spans, cache, selection);
    ops_.sparse_attention(shape, p_.heads, p_.latent_width, p_.scale(), q.floats(), spans, cache, selection,
                          out.floats());
    SparseRows result;
    result.out = out.read();
    std::vector<int32_t> all(static_cast<size_t>(rows * shape.budget_pools())), sizes(static_cast<size_t>(rows));
    ops_.copy_out(all.data(), selection.pools, all.size() * 4);
    ops_.copy_out(sizes.data(), selection.counts, sizes.size() * 4);
    for (int64_t r = 0; r < rows; ++r) {
      const auto begin = all.begin() + r * shape.budget_pools();
      result.pools.emplace_back(begin, begin + sizes[static_cast<size_t>(r)]);
    }
    return result;
  }

  // Pool keys of slot 0's pages as they are cached, the complete ones of `tokens` tokens.
  Floats pool_keys(int64_t tokens) const {
    const int64_t page_pools = kPageTokens / p_.shape.pool, width = p_.shape.width;
    const Floats all = pools_->read();
    Floats keys;
    for (int64_t i = 0; i < tokens / p_.shape.pool * width; ++i) {
      const int64_t pool = i / width, page = pages_[0][static_cast<size_t>(pool / page_pools)] - first_page_;
      const auto at = static_cast<size_t>((page * page_pools + pool % page_pools) * width + i % width);
      if (ops_.cache_element_bytes() == 4) {
        keys.push_back(all[at]);
      } else {
        const auto bits = std::bit_cast<uint32_t>(all[at / 2]);
        keys.push_back(std::bit_cast<float>(at % 2 == 0 ? bits << 16 : bits & 0xffff0000u));
      }
    }
    return keys;
  }

 private:
  Ops& ops_;
  const SparseProblem& p_;
  std::vector<std::vector<int32_t>> pages_;
  int64_t first_page_;
  Device ape_;
  std::unique_ptr<Device> latents_, pools_, tail_key_, tail_gate_;
};

inline SparseRows run_sparse_pieces(Ops& ops, const SparseProblem& p, int64_t piece) {
  SparseRunner runner(ops, p);
  SparseRows all;
  feed_pieces(p.rows, piece, [&](const Feed& feed, int64_t kept) {
    all.append(runner.step({feed}), 0, kept, p.heads * p.latent_width);
  });
  return all;
}

// ---- reference --------------------------------------------------------------------------------------------------
inline constexpr double kUnitRoundoff = 0x1p-24;

struct PoolScores {
  std::vector<double> score, bound;  // bound: of a float32 score's error
};

struct SparseReference {
  explicit SparseReference(const SparseProblem& problem) : p(problem) {
    const auto width = p.shape.width, pool = p.shape.pool;
    for (int64_t first = 0; first + pool <= p.rows; first += pool) {
      for (int64_t c = 0; c < width; ++c) {
        std::vector<double> logit(static_cast<size_t>(pool));
        double largest = -INFINITY, deepest = 0, total = 0, sum = 0, magnitude = 0;
        for (int64_t i = 0; i < pool; ++i) {
          logit[static_cast<size_t>(i)] =
              double{p.gates[static_cast<size_t>((first + i) * width + c)]} + p.ape[static_cast<size_t>(i * width + c)];
          largest = std::max(largest, logit[static_cast<size_t>(i)]);
          deepest = std::max(deepest, std::abs(logit[static_cast<size_t>(i)]));
        }
        for (int64_t i = 0; i < pool; ++i) {
          const double weight = std::exp(logit[static_cast<size_t>(i)] - largest);
          const double key = p.keys[static_cast<size_t>((first + i) * width + c)];
          total += weight;
          sum += weight * key;
          magnitude += weight * std::abs(key);
        }
        keys.push_back(sum / total);
        // A logit is off by a roundoff of its size, twice with the difference; exp 2, sums 2 pool, quotient 1.
        key_bounds.push_back(magnitude / total * (4 * deepest + 2 * static_cast<double>(pool) + 8) * kUnitRoundoff);
      }
    }
  }

  // Scores of the complete pools of the query at `position`; bounds by magnitudes: width / 16 + 6 roundings of a dot
  // and its scale, `heads` + 2 of the chain.
  PoolScores scores(int64_t position) const {
    const int64_t heads = p.shape.heads, width = p.shape.width;
    PoolScores s;
    for (int64_t pool = 0; pool < (position + 1) / p.shape.pool; ++pool) {
      double score = 0, bound = 0;
      for (int64_t h = 0; h < heads; ++h) {
        double dot = 0, error = 0;
        for (int64_t c = 0; c < width; ++c) {
          const double q = p.index_q[static_cast<size_t>((position * heads + h) * width + c)];
          const double key = keys[static_cast<size_t>(pool * width + c)];
          dot += q * key;
          error += std::abs(q) * key_bounds[static_cast<size_t>(pool * width + c)] +
                   std::abs(q * key) * (static_cast<double>(width) / 16 + 6) * kUnitRoundoff;
        }
        const double weight = p.head_weights[static_cast<size_t>(position * heads + h)] /
                              std::sqrt(static_cast<double>(heads) * static_cast<double>(width));
        score += weight * std::max(dot, 0.0);
        bound += std::abs(weight) * (error + std::max(dot, 0.0) * (static_cast<double>(heads) + 2) * kUnitRoundoff);
      }
      s.score.push_back(score);
      s.bound.push_back(bound);
    }
    return s;
  }

  // The pools that the scores choose; `higher` takes the higher index on a tie.
  std::vector<int32_t> choose(const PoolScores& s, bool higher = false) const {
    std::vector<int32_t> order(s.score.size());
    std::iota(order.begin(), order.end(), 0);
    const auto budget = static_cast<size_t>(p.shape.budget_pools());
    if (order.size() > budget) {
      if (higher) std::reverse(order.begin(), order.end());
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return s.score[static_cast<size_t>(a)] > s.score[static_cast<size_t>(b)];
      });
      order.resize(budget);
    }
    std::sort(order.begin(), order.end());
    return order;
  }

  std::vector<int64_t> visible(int64_t position, const std::vector<int32_t>& pools) const {
    std::vector<int64_t> tokens;
    for (const int32_t pool : pools)
      for (int64_t i = 0; i < p.shape.pool; ++i) tokens.push_back(pool * p.shape.pool + i);
    if (p.shape.always_select_tail)
      for (int64_t token = (position + 1) / p.shape.pool * p.shape.pool; token <= position; ++token)
        tokens.push_back(token);
    return tokens;
  }

  // Softmax attention of one row over tokens, all heads. `bound`, per head as a vector's length: every weight is off by
  // the error of its score (latent_width / 16 + 6 roundings of a dot by magnitudes) and of its difference to the
  // maximum; 64 roundings of a group's product, 4 a group of merging, 12 for exps and the quotient.
  std::vector<double> attend(int64_t position, const std::vector<int64_t>& tokens, std::vector<double>* bound) const {
    const int64_t width = p.latent_width;
    std::vector<double> out(static_cast<size_t>(p.heads * width));
    for (int64_t h = 0; h < p.heads; ++h) {
      std::vector<double> score;
      double largest = -INFINITY, smallest = INFINITY, score_error = 0;
      for (const int64_t token : tokens) {
        double dot = 0, magnitude = 0;
        for (int64_t c = 0; c < width; ++c) {
          const double term = double{p.q[static_cast<size_t>((position * p.heads + h) * width + c)]} *
                              p.latents[static_cast<size_t>(token * width + c)];
          dot += term;
          magnitude += std::abs(term);
        }
        score.push_back(dot * double{p.scale()});
        largest = std::max(largest, score.back());
        smallest = std::min(smallest, score.back());
        score_error = std::max(score_error, magnitude * double{p.scale()} * (static_cast<double>(width) / 16 + 6));
      }
      double total = 0;
      for (double& each : score) total += each = std::exp(each - largest);
      std::vector<double> magnitude(static_cast<size_t>(width));
      for (size_t j = 0; j < tokens.size(); ++j) {
        for (int64_t c = 0; c < width; ++c) {
          const double term = score[j] / total * p.latents[static_cast<size_t>(tokens[j] * width + c)];
          out[static_cast<size_t>(h * width + c)] += term;
          magnitude[static_cast<size_t>(c)] += std::abs(term);
        }
      }
      if (bound != nullptr) {
        double squares = 0;
        for (const double each : magnitude) squares += each * each;
        const double groups = static_cast<double>(tokens.size() + 63) / 64;
        const double factor = tokens.empty() ? 0 : 2 * score_error + (largest - smallest) + 64 + 4 * groups + 12;
        bound->push_back(factor * kUnitRoundoff * std::sqrt(squares));
      }
    }
    return out;
  }

  const SparseProblem& p;
  std::vector<double> keys, key_bounds;  // [pools, width]
};

// Distance of rows to a reference that sees `visible(row)`: relative over all rows, and the worst in units of the
// bound.
struct SparseAgreement {
  double relative = 0, worst = 0;
};

template <class Visible>
SparseAgreement compare_sparse(const SparseReference& reference, const SparseRows& rows, int64_t begin,
                               const Visible& visible) {
  const SparseProblem& p = reference.p;
  SparseAgreement a;
  double off = 0, size = 0;
  for (int64_t r = begin; r < p.rows; ++r) {
    std::vector<double> bound;
    const std::vector<double> expected = reference.attend(r, visible(r), &bound);
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* got = &rows.out[static_cast<size_t>((r * p.heads + h) * p.latent_width)];
      const double each = distance(got, &expected[static_cast<size_t>(h * p.latent_width)], p.latent_width);
      off += each * each;
      a.worst = std::max(a.worst, each == 0 ? 0 : each / bound[static_cast<size_t>(h)]);
      if (!std::isfinite(each)) a.worst = INFINITY;
    }
    for (const double x : expected) size += x * x;
  }
  a.relative = std::sqrt(off / size);
  return a;
}

}  // namespace verbatim::ops
