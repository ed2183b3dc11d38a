// Choices of the router and the indexer on CUDA held against the CPU's: they may differ only where what the CPU's
// scores are apart is less than the two inputs' difference and the products' rounding can move them.
#pragma once

#include "tests/cuda/one_layer.h"

namespace verbatim::model {

struct Choices {
  int64_t made = 0, different = 0;  // of rows: experts or pools chosen, and chosen otherwise than on the CPU
  double worst = 0;                 // the largest share of its bound that a difference took; may not pass 1
  void add(const Choices& other) {
    made += other.made;
    different += other.different;
    worst = std::max(worst, other.worst);
  }
};

inline double norm_of(std::span<const float> x) {
  double sum = 0;
  for (const float each : x) sum += static_cast<double>(each) * static_cast<double>(each);
  return std::sqrt(sum);
}
inline double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(sum);
}

// Every id chosen on one side alone is compared with every one of the other side: `score` on the CPU, and `bound` of
// what may move it.
template <typename Score, typename Bound>
void compare_choices(std::span<const int32_t> got, std::span<const int32_t> want, const Score& score,
                     const Bound& bound, Choices& choices) {
  const auto alone = [](std::span<const int32_t> mine, std::span<const int32_t> others) {
    std::vector<int32_t> left;
    for (const int32_t id : mine)
      if (id >= 0 && std::find(others.begin(), others.end(), id) == others.end()) left.push_back(id);
    return left;
  };
  for (const int32_t id : want) choices.made += id >= 0 ? 1 : 0;
  const std::vector<int32_t> mine = alone(got, want), others = alone(want, got);
  EXPECT_EQ(mine.size(), others.size());
  choices.different += std::ssize(mine);
  for (const int32_t taken : mine)
    for (const int32_t left : others)
      choices.worst = std::max(choices.worst, (score(left) - score(taken)) / (bound(left) + bound(taken)));
}

// Scores are sigmoid(w x) + bias; a sigmoid moves by a quarter of what its argument does at most. The three terms of x
// are exact, and 2^-24 of every sum of at most K terms is lost at each of them.
inline Choices router_choices(const Record& got, const Record& want, const Model& one) {
  Choices choices;
  const Config& c = one.config;
  const Moe& moe = one.weights.layers.front().moe;
  const auto D = static_cast<size_t>(c.hidden), E = static_cast<size_t>(c.experts);
  const auto top = static_cast<size_t>(c.experts_per_token);
  std::vector<double> norms(E);
  for (size_t e = 0; e < E; ++e) {
    double sum = 0;
    for (size_t k = 0; k < D; ++k) sum += std::pow(weight_value(moe.router, e, k), 2);
    norms[e] = std::sqrt(sum);
  }
  for (size_t r = 0; r * top < want.chosen.size(); ++r) {
    const auto x = std::span(want.router_input).subspan(r * D, D),
               moved = std::span(got.router_input).subspan(r * D, D);
    const double by = distance(moved, x) + static_cast<double>(D) * 0x1p-24 * norm_of(x);
    compare_choices(
        std::span(got.chosen).subspan(r * top, top), std::span(want.chosen).subspan(r * top, top),
        [&](int32_t e) {
          const double logit = want.router_logits[r * E + static_cast<size_t>(e)];
          return 1 / (1 + std::exp(-logit)) + (moe.bias == nullptr ? 0.0 : static_cast<double>(moe.bias[e]));
        },
        [&](int32_t e) { return 0.25 * norms[static_cast<size_t>(e)] * by + 0x1p-22; }, choices);
  }
  return choices;
}

// score(pool) = sum over heads of w relu(q . key); keys differ where a backend keeps them in fewer bits.
inline Choices pool_choices(const Record& got, const Record& want, const Model& one) {
  Choices choices;
  const ops::IndexShape shape = index_shape(one.config);
  const auto heads = static_cast<size_t>(shape.heads), width = static_cast<size_t>(shape.width);
  const auto budget = static_cast<size_t>(shape.budget_pools());
  const double scale = 1 / std::sqrt(static_cast<double>(heads) * static_cast<double>(width));
  for (size_t r = 0; r < want.counts.size(); ++r) {
    const auto query = [&](const Record& of, size_t h) {
      return std::span(of.index_query).subspan((r * heads + h) * width, width);
    };
    const auto weight = [&](const Record& of, size_t h) {
      return static_cast<double>(of.index_weights[r * heads + h]);
    };
    compare_choices(
        std::span(got.pools).subspan(r * budget, budget), std::span(want.pools).subspan(r * budget, budget),
        [&](int32_t pool) {
          const std::vector<float>& key = want.pool_keys[static_cast<size_t>(pool)];
          double sum = 0;
          for (size_t h = 0; h < heads; ++h) {
            double dot = 0;
            for (size_t i = 0; i < width; ++i)
              dot += static_cast<double>(query(want, h)[i]) * static_cast<double>(key[i]);
            sum += weight(want, h) * std::max(dot, 0.0) * scale;
          }
          return sum;
        },
        [&](int32_t pool) {
          const std::vector<float>& key = want.pool_keys[static_cast<size_t>(pool)];
          const double keys = norm_of(key), moved = distance(got.pool_keys[static_cast<size_t>(pool)], key);
          double sum = 0;
          for (size_t h = 0; h < heads; ++h) {
            const double q = norm_of(query(want, h)), by = distance(query(got, h), query(want, h));
            const double w = std::abs(weight(want, h)), w_by = std::abs(weight(got, h) - weight(want, h));
            const double rounding = static_cast<double>(width + heads) * 0x1p-24;
            sum += scale * ((w + w_by) * (by * (keys + moved) + q * moved + rounding * q * keys) + w_by * q * keys);
          }
          return sum;
        },
        choices);
  }
  return choices;
}

}  // namespace verbatim::model
